"""Test what an agent attaches, and when it makes a store: an empty directory may be the mount point of one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.agent import store_attachment
from receiver_runtime.agent.store_attachment import attach
from receiver_runtime.block_store.frames.errors import StoreUnavailableError
from receiver_runtime.block_store.stores.identity import identity_of, make_identity
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.block_store.stores.object_store import ObjectBlockStore
from tests.support.machine.mounts import Mount
from tests.unit.receiver_runtime.memory_objects import MemoryObjects
from tracker_store.blocks.block_stores import (
    HostStore,
    UnsharedBlockStoreError,
    attached_identities,
    expected_identities,
    list_block_stores,
)
from tracker_store.connection.engine import connect
from tracker_store.receivers.processes import register_process
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa


def start(engine: sa.Engine, host: str, block_store: object) -> None:
    attach(engine, host=host, block_store=str(block_store), stop=threading.Event())
    with connect(engine) as connection:
        register_process(connection, kind=ProcessKind.AGENT, name=host, host=host, pid=1, slots=4)


def seen(engine: sa.Engine) -> dict[str, dict[str, str]]:
    with connect(engine) as connection:
        return {row.host: dict(row.roots) for row in list_block_stores(connection)}


def expected(engine: sa.Engine, root: Path, host: str) -> list[str]:
    with connect(engine) as connection:
        return attached_identities(connection, [str(root)], host=host)[str(root)]


def test_the_first_store_of_an_installation_is_created(engine: sa.Engine, tmp_path: Path) -> None:
    root = tmp_path / "blocks"
    with connect(engine) as connection:
        assert attached_identities(connection, [str(root)]) == {}
    start(engine, "a", root)
    made = identity_of(LocalBlockStore(root))
    assert made is not None
    assert seen(engine) == {"a": {made: str(root)}}
    assert expected(engine, root, "a") == expected(engine, root, "b") == expected(engine, tmp_path, "b") == [made]


@pytest.mark.parametrize("instead", ["an empty directory", "nothing"])
def test_a_store_not_mounted_at_its_agents_start_keeps_its_identity(
    engine: sa.Engine, tmp_path: Path, instead: str
) -> None:
    mount = Mount(tmp_path / "blocks")
    start(engine, "a", mount.root)
    before = seen(engine)
    mount.unmount(instead)
    start(engine, "a", mount.root)
    assert mount.below == []
    assert mount.root.exists() == (instead != "nothing")
    assert seen(engine) == before


def test_another_store_in_its_place_does_not_replace_it(engine: sa.Engine, tmp_path: Path) -> None:
    """Check with a store that was adopted in the empty mount point."""
    mount = Mount(tmp_path / "blocks")
    start(engine, "a", mount.root)
    before = seen(engine)
    mount.unmount()
    make_identity(LocalBlockStore(mount.root))
    start(engine, "a", mount.root)
    assert seen(engine) == before


def test_a_host_without_the_shared_store_is_refused_and_creates_nothing(engine: sa.Engine, tmp_path: Path) -> None:
    start(engine, "a", tmp_path / "blocks")
    mount_point = tmp_path / "b" / "blocks"
    with pytest.raises(
        StoreUnavailableError, match=f"not mounted.*a has {tmp_path}/blocks.*blocks adopt {mount_point}"
    ):
        start(engine, "b", mount_point)
    assert not mount_point.parent.exists()
    mount_point.mkdir(parents=True)
    with pytest.raises(StoreUnavailableError, match="not mounted"):
        start(engine, "b", mount_point)
    assert list(mount_point.iterdir()) == []
    make_identity(LocalBlockStore(mount_point))
    with pytest.raises(UnsharedBlockStoreError):
        start(engine, "b", mount_point)
    assert list(seen(engine)) == ["a"]


def test_a_replica_never_seen_is_left_out_and_a_known_one_stays(engine: sa.Engine, tmp_path: Path) -> None:
    first, second = Mount(tmp_path / "a"), tmp_path / "b"
    start(engine, "a", first.root)
    start(engine, "a", f"{first.root},{second}")
    assert not second.exists()
    assert set(seen(engine)["a"].values()) == {str(first.root)}
    make_identity(LocalBlockStore(second))
    start(engine, "a", f"{first.root},{second}")
    both = seen(engine)
    assert set(both["a"].values()) == {str(first.root), str(second)}
    first.unmount()
    start(engine, "a", f"{first.root},{second}")
    assert seen(engine) == both
    assert first.below == []


def test_an_object_store_gets_an_identity_once(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "s3://bucket/forebay"
    objects = MemoryObjects()
    monkeypatch.setattr(store_attachment, "open_block_store", lambda _: ObjectBlockStore(objects, name))
    start(engine, "here", name)
    made = objects.objects["_store"].decode().strip()
    assert seen(engine) == {"here": {made: name}}
    with connect(engine) as connection:
        assert attached_identities(connection, [name], host="there") == {name: [made]}
    objects.objects.clear()
    start(engine, "here", name)
    assert objects.objects == {}
    assert seen(engine) == {"here": {made: name}}


def test_expected_identities_of_roots() -> None:
    a = HostStore("a", {"one": "/data", "two": "/more"}, lives=True)
    b = HostStore("b", {"three": "/data"}, lives=True)
    assert expected_identities([a, b], ["/data", "/more"], host="a") == {"/data": ["one"], "/more": ["two"]}
    assert expected_identities([a, b], ["/data", "/more"], host="b") == {"/data": ["three"], "/more": ["two"]}
    assert expected_identities([a, b], ["/data", "/new"]) == {
        "/data": ["one", "three"],
        "/new": ["one", "three", "two"],
    }
    assert expected_identities([], ["/data"]) == {}
