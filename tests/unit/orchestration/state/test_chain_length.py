"""Check that the driver log reads back as many versions of a state as a bucket's chain can have."""

from __future__ import annotations

from orchestration.state.state_frame import FULL_EVERY_VERSIONS
from tracker_store.schema.state_chain import CHAIN_STEPS


def test_a_chain_is_never_longer_than_what_is_read_back() -> None:
    assert CHAIN_STEPS == FULL_EVERY_VERSIONS
