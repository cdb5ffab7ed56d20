"""Check what salvage counts as lost, whatever numbers the headers on the disk have."""

from __future__ import annotations

import pytest

from receiver_runtime.block_path.recovery.found_frames import FoundFrames
from receiver_runtime.block_store.frames.frame import SourceRule


@pytest.mark.timeout(30)
def test_a_number_of_2_to_the_62_is_counted_and_not_gone_through() -> None:
    """A forged header may have it: a loop through the numbers in between never ends."""
    found = FoundFrames(epoch=1, registered=5, newest=2**62, intact={6, 2**62})
    assert found.count_unread(SourceRule.NOT_SENT_AGAIN) == 2**62 - 5 - 2
    assert found.count_unread(SourceRule.SENT_AGAIN) == 0
    assert found.count_unread(SourceRule.OFFSETS) == 0


def test_only_numbers_without_a_readable_frame_are_counted() -> None:
    rule = SourceRule.NOT_SENT_AGAIN
    found = FoundFrames(epoch=1, registered=5, newest=12, acknowledged=9, intact={6, 8}, damaged={9: (3, rule)})
    assert found.count_unread(rule) == len({7, 10, 11, 12})
    # What was acknowledged is not sent again.
    assert found.count_unread(SourceRule.SENT_AGAIN) == len({7})
    assert FoundFrames(epoch=1, registered=5, newest=5).count_unread(rule) == 0


def test_an_epoch_whose_claim_was_lost_begins_at_its_first_readable_number() -> None:
    found = FoundFrames(epoch=1, registered=5, known=False, newest=12, intact={9, 12})
    assert found.count_unread(SourceRule.NOT_SENT_AGAIN) == len({10, 11})


def test_the_first_number_behind_the_registered_ones_is_counted() -> None:
    found = FoundFrames(epoch=1, registered=5, newest=8, intact={7})
    assert found.count_unread(SourceRule.NOT_SENT_AGAIN) == len({6, 8})
