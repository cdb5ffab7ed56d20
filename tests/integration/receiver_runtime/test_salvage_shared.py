"""Test salvage on a directory that several hosts mount: a file that is missing there is missing for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from receiver_runtime.block_path.recovery.salvage import store_location
from receiver_runtime.block_store.stores.identity import make_identity
from receiver_runtime.block_store.stores.local import LocalBlockStore
from tests.integration.receiver_runtime.salvage_rig import SalvagedReceiver

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa


@pytest.fixture
def receiver(engine: sa.Engine, tmp_path: Path) -> SalvagedReceiver:
    """Return a receiver whose store has been attached by an agent."""
    make_identity(LocalBlockStore(tmp_path / "blocks"))
    return SalvagedReceiver.make(engine, tmp_path / "blocks")


def test_a_host_that_mounts_the_same_directory_knows_that_a_file_was_never_made(
    receiver: SalvagedReceiver, tmp_path: Path
) -> None:
    life = receiver.live(receiver.claim())
    life.rows.open_segment("receiver-1/never-made.segment", "not_sent_again")
    elsewhere = LocalBlockStore(tmp_path / "elsewhere")
    make_identity(elsewhere)
    receiver.salvage(receiver.claim(), host="there", root=elsewhere.root)
    assert receiver.segments() == [("OPEN", None)], "another directory says nothing about this one"
    mounted = tmp_path / "mounted"
    mounted.symlink_to(receiver.root)
    receiver.salvage(receiver.claim(), host="there", root=mounted)
    assert receiver.segments() == [("SEALED", 0)]


def test_a_store_location_is_its_identity_if_it_has_one(tmp_path: Path) -> None:
    store = LocalBlockStore(tmp_path / "new")
    assert store_location("here", store) == f"here:{tmp_path / 'new'}"
    assert store_location("here", store) != store_location("there", store)
    identity = make_identity(store)
    assert store_location("here", store) == store_location("there", store) == identity
