"""Fluent Forward in the conformance suite: chunks that are sent again until they are acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing.sources import (
    SourceConformance,
    check_acknowledged_when_registered,
    check_taken_over_from_a_live_receiver,
)
from forebay_contrib.fluent_forward.tests.forward_source import ForwardSenders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.testing.source_rig import MakeRig

# In seconds. A test waits for several things in turn, each for as long as a process start takes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240, func_only=True)]


class TestFluentForward(SourceConformance):
    """At least once, deduplicated."""

    asks_for_records = False

    @pytest.fixture
    def adapter(self, database_url: str) -> Iterator[ForwardSenders]:
        made = ForwardSenders(database_url)
        yield made
        made.close()

    def test_acknowledges_when_registered(self, adapter: ForwardSenders, make_rig: MakeRig, database_url: str) -> None:
        check_acknowledged_when_registered(
            adapter, make_rig(adapter.source()), database_url, lambda: len(adapter.sent) - adapter.answered
        )

    def test_another_receiver_takes_what_a_live_one_holds(
        self, adapter: ForwardSenders, make_rig: MakeRig, database_url: str
    ) -> None:
        check_taken_over_from_a_live_receiver(adapter, make_rig(adapter.source(), receivers=2), database_url)
