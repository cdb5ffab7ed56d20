"""ZeroMQ by the conformance suite: receivers that pull, and receivers that subscribe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing.sources import SourceConformance
from forebay_contrib.zeromq.tests.zeromq_source import ZeroMQSender

if TYPE_CHECKING:
    from collections.abc import Iterator

# A test waits for several things in turn, and for each as long as a process takes to start where others work beside it.
pytestmark = pytest.mark.timeout(240, func_only=True)


class TestPull(SourceConformance):
    """At most once."""

    asks_for_records = False

    @pytest.fixture
    def adapter(self, database_url: str) -> Iterator[ZeroMQSender]:
        made = ZeroMQSender(database_url, "pull")
        yield made
        made.close()


class TestSub(SourceConformance):
    """At most once, with topics."""

    asks_for_records = False

    @pytest.fixture
    def adapter(self, database_url: str) -> Iterator[ZeroMQSender]:
        made = ZeroMQSender(database_url, "sub")
        yield made
        made.close()
