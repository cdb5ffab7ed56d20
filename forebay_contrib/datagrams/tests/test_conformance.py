"""Datagrams in the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing.sources import SourceConformance
from forebay_contrib.datagrams.tests.datagram_source import DatagramSender

if TYPE_CHECKING:
    from collections.abc import Iterator

# In seconds. A test waits for several things in turn, each for as long as a process start takes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240, func_only=True)]


class TestDatagrams(SourceConformance):
    """At most once."""

    asks_for_records = False

    @pytest.fixture
    def adapter(self, database_url: str) -> Iterator[DatagramSender]:
        made = DatagramSender(database_url)
        yield made
        made.close()
