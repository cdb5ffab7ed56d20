"""Test the block store on a real S3 server; `make s3`."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import spark_session
from receiver_runtime.block_path.write_ahead_log import WriteAheadLog, WriteAheadLogError
from receiver_runtime.block_store.frames.errors import (
    BlockMissingError,
    BlockStoreError,
    StoreUnavailableError,
)
from receiver_runtime.block_store.frames.reading import FrameAt
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.block_store.stores.identity import make_identity
from receiver_runtime.block_store.stores.stores import open_block_store, replicas_of
from tests.integration.orchestration.batches.test_batch_run import same
from tests.support.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from tests.support.spark.batch_rig import System
from tests.unit.receiver_runtime.support import MemoryDriverLog, dead_letter_frame, eventually, frame, make_log, whole
from tracker_store.connection.engine import connect
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import sqlalchemy as sa

    from tracker_store.blocks.blocks import BlockHandle

pytestmark = [pytest.mark.s3, pytest.mark.core]

PATH = "receiver-7/9-000001.segment"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.kill()


@pytest.fixture
def server(running: S3Server) -> S3Server:
    """Return a running server, whatever the previous test did to it."""
    running.kill()
    running.start()
    return running


def log_with_rows(url: str, *, timeout: float = 30) -> tuple[WriteAheadLog, MemoryDriverLog]:
    rows = MemoryDriverLog()
    return make_log(open_block_store(url, timeout=timeout), rows), rows


def test_l04_written_read_by_handle_scanned_and_deleted(server: S3Server) -> None:
    url = server.url("whole/way")
    log, rows = log_with_rows(url)
    large = frame(bytes(range(256)) * 80_000, sequence=1)  # two parts of a multi-part upload
    written = [large, frame(sequence=2)]
    handles = [handle for item in written for handle in log.write([item])]
    letters = [dead_letter_frame(b"\xff"), dead_letter_frame(b"\xfe\xfd")]
    handles += log.write(letters)
    log.close()
    store = open_block_store(url)
    for item, handle in zip([*written, *letters], handles, strict=True):
        assert store.read_frame(PATH, handle.offset, handle.length, handle.crc32c).data == whole(item)
    scanned = list(store.scan(PATH))
    assert [(type(item), item.offset) for item in scanned] == [(IntactFrame, handle.offset) for handle in handles]
    assert sum(item.length for item in scanned) == rows.lengths[1]
    [replica] = replicas_of(store)
    assert list(replica.segment_paths()) == [PATH]
    with pytest.raises(FileExistsError):
        store.create_segment(PATH)
    assert replica.set_aside(PATH) == f"_aside/{PATH}"
    replica.restore_segment(PATH, [(handles[0].offset, whole(large))])
    assert [item.length for item in store.scan(PATH)] == [large.length]
    store.delete_segment(PATH)
    store.delete_segment(PATH)
    assert list(replica.segment_paths()) == []
    with pytest.raises(BlockMissingError, match="no such object"):
        store.read_frame(PATH, 0, large.length, large.crc32c)


def test_credentials_come_from_the_environment_as_usual(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.url("credentials").replace(f"{ACCESS_KEY}:{SECRET_KEY}@", "")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    segment = open_block_store(url).create_segment(PATH)
    segment.append(frame())
    segment.sync()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(StoreUnavailableError, match=r"SIGNATURE_DOES_NOT_MATCH|ACCESS_DENIED"):
        open_block_store(url, timeout=5).read_frame(PATH, 0, frame().length, frame().crc32c)


def test_a_missing_bucket_fails_the_write(server: S3Server) -> None:
    url = server.url("x").replace("@blocks/", "@another/")
    segment = open_block_store(url, timeout=5).create_segment(PATH)
    segment.append(frame())
    with pytest.raises(BlockStoreError, match=r"^writing to .*(NO_SUCH_BUCKET|NoSuchBucket|does not exist)"):
        segment.sync()


def test_a_prefix_without_the_right_identity_is_unavailable_and_takes_nothing(server: S3Server) -> None:
    """Check as for a bucket that was created again, or another server behind the same address."""
    url = server.url("known")
    [made] = replicas_of(open_block_store(url))
    assert made.identity() is None
    identity = make_identity(made)
    assert make_identity(made) == identity
    expected = {made.name: [identity]}
    store = open_block_store(url, expected=expected)
    segment = store.create_segment(PATH)
    segment.append(frame())
    segment.sync()
    assert list(replicas_of(store)[0].segment_paths()) == [PATH]
    at = FrameAt(0, frame().length, frame().crc32c)
    store.read_frame(PATH, *at)
    other = FrameAt(frame().length, 1, 0)
    assert store.lost_frames(PATH, [other]) == {other}

    for prefix, another in (("emptied", None), ("anothers", "objects-1")):
        [place] = replicas_of(open_block_store(server.url(prefix)))
        if another is not None:
            make_identity(place, another)
        wrong = open_block_store(server.url(prefix), timeout=5, expected={place.name: [identity]})
        for use in (
            lambda store: store.create_segment(PATH),
            lambda store: store.read_frame(PATH, *at),
            lambda store: store.lost_frames(PATH, [at]),
            lambda store: list(store.scan(PATH)),
            lambda store: store.delete_segment(PATH),
        ):
            with pytest.raises(StoreUnavailableError, match="not mounted"):
                use(wrong)
        assert place.identity() == another
        assert [*place.segment_paths()] == []


def test_h01_in_another_bucket_or_prefix_a_block_is_not_missing(server: S3Server) -> None:
    url = server.url("found")
    log, _ = log_with_rows(url)
    [handle] = log.write([frame()])
    log.close()
    at = FrameAt(handle.offset, handle.length, handle.crc32c)
    another = url.replace("@blocks/", "@another/")
    for wrong, said in ((another, "no such bucket"), (server.url("nowhere"), "below this")):
        store = open_block_store(wrong, timeout=5)
        with pytest.raises(StoreUnavailableError, match=said):
            store.read_frame(PATH, *at)
        with pytest.raises(StoreUnavailableError, match=said):
            store.lost_frames(PATH, [at])
    with pytest.raises(StoreUnavailableError, match="no such bucket"):
        list(open_block_store(another, timeout=5).scan(PATH))
    store = open_block_store(url)
    other = FrameAt(handle.offset + handle.length, 1, 0)
    assert store.lost_frames(PATH, [at, other]) == {other}
    with pytest.raises(BlockMissingError, match="no such object"):
        store.read_frame(PATH, *other)


class Writer:
    """Write blocks one after the other, each until it is acknowledged."""

    def __init__(self, log: WriteAheadLog) -> None:
        self._log = log
        self.handles: list[BlockHandle] = []
        self.failures = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def written(self, least: int) -> None:
        least += len(self.handles)
        eventually(lambda: len(self.handles) >= least, "writing")

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            item = frame(b"x" * 5_000, sequence=len(self.handles) + 1)
            try:
                self.handles += self._log.write([item])
            except WriteAheadLogError:
                self.failures += 1


def test_a_server_that_is_killed_in_the_middle_of_writes_loses_nothing_that_was_acknowledged(server: S3Server) -> None:
    url = server.url("killed")
    log, rows = log_with_rows(url, timeout=3)
    writer = Writer(log)
    for _ in range(4):
        writer.written(25)
        server.kill()
        # Not a wait for a state: the server is down for 0.3 s, in the middle of any write.
        time.sleep(0.3)
        server.start()
    server.kill()
    eventually(lambda: writer.failures, "a write that fails for good")
    server.start()
    writer.written(25)
    writer.stop()
    log.close()
    store = open_block_store(url)
    for sequence, handle in enumerate(writer.handles, start=1):
        read = store.read_frame(rows.paths[handle.segment_id], handle.offset, handle.length, handle.crc32c)
        assert read.header.sequence == sequence
    # In every segment, what was sealed is complete.
    for segment_id, length in rows.lengths.items():
        if length:
            scanned = [item for item in store.scan(rows.paths[segment_id]) if item.offset < length]
            assert all(isinstance(item, IntactFrame) for item in scanned)
            assert sum(item.length for item in scanned) == length


def test_a_hanging_server_is_given_up_in_time(server: S3Server) -> None:
    store = open_block_store(server.url("hangs"), timeout=3)
    segment = store.create_segment(PATH)
    server.signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        segment.append(frame())
        with pytest.raises(BlockStoreError, match=r"^writing to .*no answer"):
            segment.sync()
        assert time.monotonic() - began < 20
    finally:
        server.signal(signal.SIGCONT)


def test_a_directory_is_written_while_its_s3_replica_is_unavailable_and_copied_to_it_later(
    server: S3Server, tmp_path: Path
) -> None:
    log, rows = log_with_rows(f"{tmp_path / 'here'},{server.url('replica')}", timeout=2)
    handles = log.write([frame(sequence=1)])
    server.kill()
    handles += log.write([frame(sequence=2)])
    server.start()
    handles += log.write([frame(sequence=3)])
    assert {handle.segment_id for handle in handles} == {1}
    log.close()
    here, there = replicas_of(open_block_store(f"{tmp_path / 'here'},{server.url('replica')}"))
    with pytest.raises(BlockStoreError):
        there.read_frame(PATH, handles[2].offset, handles[2].length, handles[2].crc32c)
    there.restore_segment(PATH, ((h.offset, here.read_frame(PATH, h.offset, h.length, h.crc32c).data) for h in handles))
    assert [item.offset for item in there.scan(PATH)] == [handle.offset for handle in handles]
    assert rows.lengths == {1: handles[-1].offset + handles[-1].length}


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_reads_a_batch_s_blocks_from_s3(
    server: S3Server, engine: sa.Engine, database_url: str, tmp_path: Path
) -> None:
    session = spark_session(Settings(home=tmp_path, spark_master="local[2]"), application="tests")
    try:
        with connect(engine) as connection:
            system = System(connection, database_url, tmp_path, session, block_store=server.url("spark"))
            pipeline = system.declare(same)
            system.receive(["a", "b"], ["c"], ["é" * 100_000])
            batch_time = system.allocate(1)
            system.receive(["later"])
            system.run(pipeline, batch_time, 1)
            assert system.state(batch_time) == (BatchState.COMPLETED, 1)
            assert system.published() == ["a", "b", "c", "é" * 100_000]
    finally:
        session.stop()
