"""Check that a root with the wrong store takes nothing, says nothing about blocks, and is left unchanged."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.block_path.write_ahead_log import WriteAheadLogError
from receiver_runtime.block_store.frames.errors import BlockMissingError, StoreUnavailableError
from receiver_runtime.block_store.frames.files import Files
from receiver_runtime.block_store.frames.reading import FrameAt
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.block_store.roots import root_names
from receiver_runtime.block_store.stores.identity import IDENTITY_FILE, make_identity
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.block_store.stores.object_store import ObjectBlockStore
from receiver_runtime.block_store.stores.replicated import ReplicatedBlockStore
from receiver_runtime.block_store.stores.stores import open_block_store
from tests.support.machine.mounts import Mount
from tests.unit.receiver_runtime.memory_objects import MemoryObjects
from tests.unit.receiver_runtime.support import MemoryDriverLog, frame, make_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path, PurePath

PATH = "receiver-7/9-000001.segment"
NEXT = "receiver-7/9-000002.segment"
FRAME = frame()
FRAME_SEQUENCE = 1
AT = FrameAt(0, FRAME.length, FRAME.crc32c)


class MountedStore(Mount):
    """A mount whose directory is a block store from the start."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.identity = make_identity(LocalBlockStore(root))

    def replace(self, instead: str) -> None:
        """Unmount the store, and perhaps put another store in its place."""
        self.unmount("nothing" if instead == "nothing" else "an empty directory")
        if instead == "another store":
            make_identity(LocalBlockStore(self.root))

    def put_back(self) -> None:
        (self.root / IDENTITY_FILE).unlink(missing_ok=True)
        self.mount()

    def store(self, files: Files | None = None) -> LocalBlockStore:
        return LocalBlockStore(self.root, expected=[self.identity], files=files)


@pytest.fixture
def mount(tmp_path: Path) -> MountedStore:
    return MountedStore(tmp_path / "blocks")


def keep(store: LocalBlockStore, path: str = PATH) -> None:
    segment = store.create_segment(path)
    segment.append(FRAME)
    segment.sync()
    segment.close()


USES: dict[str, Callable[[LocalBlockStore], object]] = {
    "check": lambda store: store.check(),
    "create": lambda store: store.create_segment(NEXT),
    "read": lambda store: store.read_frame(PATH, *AT),
    "read batches": lambda store: list(store.read_batches(PATH, *AT)),
    "look for lost ones": lambda store: store.lost_frames(PATH, [AT]),
    "scan": lambda store: list(store.scan(PATH)),
    "delete": lambda store: store.delete_segment(PATH),
    "list": lambda store: list(store.segment_paths()),
    "set aside": lambda store: store.set_aside(PATH),
    "restore": lambda store: store.restore_segment(PATH, []),
}


@pytest.mark.parametrize("instead", ["an empty directory", "another store", "nothing"])
@pytest.mark.parametrize("use", USES)
def test_an_unmounted_store_is_unavailable_and_nothing_is_made_in_its_place(
    mount: MountedStore, use: str, instead: str
) -> None:
    store = mount.store()
    keep(store)
    mount.replace(instead)
    before = mount.below
    with pytest.raises(StoreUnavailableError, match="not mounted") as away:
        USES[use](store)
    assert str(mount.root) in str(away.value)
    assert mount.below == before
    mount.put_back()
    assert store.read_frame(PATH, *AT).header.sequence == FRAME_SEQUENCE
    keep(store, "receiver-7/9-000003.segment")
    assert set(store.segment_paths()) == {PATH, "receiver-7/9-000003.segment"}


def test_the_identity_is_not_read_again_for_a_block_that_can_be_read(mount: MountedStore) -> None:
    class Counting(Files):
        looked = 0

        def open_directory(self, path: PurePath) -> int:
            self.looked += 1
            return super().open_directory(path)

    files = Counting()
    store = mount.store(files)
    keep(store)
    looked = files.looked
    store.read_frame(PATH, *AT)
    assert files.looked == looked == 1
    with pytest.raises(BlockMissingError):
        store.read_frame(NEXT, *AT)
    assert files.looked == looked + 1


def test_a_store_that_returns_between_two_looks_has_not_lost_its_blocks(mount: MountedStore) -> None:
    """A block is missing only if it is missing in the same open directory whose identity was right."""

    class MountedMeanwhile(Files):
        away = False

        def open(self, path: PurePath, *, dir_fd: int | None = None) -> int:
            try:
                return super().open(path, dir_fd=dir_fd)
            finally:
                if self.away:
                    self.away = False
                    mount.mount()

    files = MountedMeanwhile()
    store = mount.store(files)
    keep(store)
    mount.unmount()
    files.away = True
    assert store.lost_frames(PATH, [AT]) == set()


def test_a_file_created_while_the_store_is_unmounted_is_in_the_store(mount: MountedStore) -> None:
    class UnmountedMeanwhile(Files):
        def create(self, path: PurePath, *, dir_fd: int | None = None) -> int:
            mount.unmount()
            return super().create(path, dir_fd=dir_fd)

    keep(mount.store(UnmountedMeanwhile()))
    assert mount.below == []
    mount.mount()
    assert [type(item) for item in mount.store().scan(PATH)] == [IntactFrame]


def test_a_directory_with_an_unreadable_identity_says_nothing_about_its_blocks(mount: MountedStore) -> None:
    """This happens on a network mount whose server is gone: its root can be opened, but nothing in it."""
    store = mount.store()
    (mount.root / IDENTITY_FILE).unlink()
    (mount.root / IDENTITY_FILE).mkdir()
    with pytest.raises(StoreUnavailableError, match="_store"):
        store.read_frame(PATH, *AT)


def test_a_disk_error_stays_a_disk_error_in_the_right_store(mount: MountedStore) -> None:
    class Failing(Files):
        def read(self, fd: int, length: int, offset: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    keep(mount.store())
    with pytest.raises(OSError, match="Input/output error") as error:
        mount.store(Failing()).read_frame(PATH, *AT)
    assert error.value.errno == errno.EIO


def test_a_root_that_was_never_attached_takes_nothing(tmp_path: Path) -> None:
    make_identity(LocalBlockStore(tmp_path))
    store = LocalBlockStore(tmp_path, expected=())
    with pytest.raises(StoreUnavailableError, match="restart its agent"):
        store.create_segment(PATH)


def test_the_log_makes_no_row_and_no_file_while_the_store_is_unavailable_and_then_continues(
    mount: MountedStore,
) -> None:
    rows = MemoryDriverLog()
    log = make_log(mount.store(), rows, max_segment_bytes=1)
    [first] = log.write([FRAME])
    mount.unmount()
    for _ in range(3):
        with pytest.raises(WriteAheadLogError, match=r"blocks can't be reached \(not mounted"):
            log.write([FRAME])
    assert len(rows.paths) == 1
    assert mount.below == []
    mount.mount()
    [second] = log.write([FRAME])
    assert {first.segment_id, second.segment_id} == set(rows.paths)
    for handle in (first, second):
        mount.store().read_frame(rows.paths[handle.segment_id], handle.offset, handle.length, handle.crc32c)


class Told:
    def __init__(self) -> None:
        self.lost: list[tuple[str, str]] = []
        self.back: list[str] = []

    def on_replica_lost(self, name: str, detail: str) -> None:
        self.lost.append((name, detail))

    def on_replica_back(self, name: str) -> None:
        self.back.append(name)

    def on_replica_damaged(self, name: str, receiver_id: int, detail: str) -> None:
        raise AssertionError((name, receiver_id, detail))


def test_an_unmounted_replica_is_unavailable_and_the_other_takes_the_blocks(tmp_path: Path) -> None:
    here, there = MountedStore(tmp_path / "a"), MountedStore(tmp_path / "b")
    told = Told()
    store = ReplicatedBlockStore([here.store(), there.store()], listener=told)
    here.unmount()
    store.check()
    keep(store)  # type: ignore[arg-type]
    assert [name for name, detail in told.lost if "not mounted?" in detail] == [str(here.root)]
    assert here.below == []
    assert store.read_frame(PATH, *AT).header.sequence == FRAME_SEQUENCE
    there.unmount()
    with pytest.raises(StoreUnavailableError, match="not mounted"):
        store.check()
    with pytest.raises(StoreUnavailableError, match="not mounted"):
        store.read_frame(PATH, *AT)
    with pytest.raises(StoreUnavailableError, match="not mounted"):
        list(store.scan(PATH))
    here.mount()
    keep(store, NEXT)  # type: ignore[arg-type]
    assert told.back == [str(here.root)]


def test_a_segment_is_not_missing_while_its_only_replica_is_unavailable(tmp_path: Path) -> None:
    here, there = MountedStore(tmp_path / "a"), MountedStore(tmp_path / "b")
    store = ReplicatedBlockStore([here.store(), there.store()])
    there.unmount()
    keep(store)  # type: ignore[arg-type]
    there.mount()
    here.unmount()
    with pytest.raises(StoreUnavailableError, match="not mounted"):
        list(store.scan(PATH))
    here.mount()
    assert len(list(store.scan(PATH))) == 1
    with pytest.raises(FileNotFoundError):
        list(store.scan(NEXT))


@pytest.mark.parametrize("instead", ["an empty bucket", "another store"])
def test_an_object_store_is_identified_by_an_object(instead: str) -> None:
    objects = MemoryObjects()
    identity = make_identity(ObjectBlockStore(objects, "s3://bucket/forebay"))
    store = ObjectBlockStore(objects, "s3://bucket/forebay", expected=[identity])
    keep(store)  # type: ignore[arg-type]
    assert store.read_frame(PATH, *AT).header.sequence == FRAME_SEQUENCE
    right, objects.objects = objects.objects, {}
    if instead == "another store":
        make_identity(ObjectBlockStore(objects, "s3://bucket/forebay"))
    before = dict(objects.objects)
    for name, use in USES.items():
        with pytest.raises(StoreUnavailableError, match="not mounted"):
            use(store)  # type: ignore[arg-type]
        assert objects.objects == before, name
    objects.objects = right
    keep(store, NEXT)  # type: ignore[arg-type]
    assert set(store.segment_paths()) == {PATH, NEXT}
    with pytest.raises(BlockMissingError):
        store.read_frame("receiver-7/9-000003.segment", *AT)
    assert store.lost_frames("receiver-7/9-000003.segment", [AT]) == {AT}


def test_the_roots_of_a_setting_are_named_as_their_stores(tmp_path: Path) -> None:
    setting = f"{tmp_path}/a,file://{tmp_path}/b%2Cc,s3://key:secret@bucket/forebay?region=eu-central-1"
    names = root_names(setting)
    assert names == [f"{tmp_path}/a", f"{tmp_path}/b,c", "s3://bucket/forebay"]
    store = open_block_store(setting, expected={names[1]: ["directory-1"]})
    assert store.name == ", ".join(names)
    with pytest.raises(StoreUnavailableError, match=r"b,c.*not mounted"):
        store.replicas[1].check()  # type: ignore[attr-defined]
    store.replicas[0].check()  # type: ignore[attr-defined]
