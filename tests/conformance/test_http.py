"""HTTP in the conformance suite: real receivers, real connections, and senders that retry until they get an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing.sources import SourceConformance
from tests.conformance.http_source import HttpSenders

if TYPE_CHECKING:
    from collections.abc import Iterator

# In seconds. A test waits for several things in turn, each for as long as a process start takes on a busy machine.
pytestmark = pytest.mark.timeout(240, func_only=True)


class TestHttp(SourceConformance):
    """At least once, deduplicated: with keys each record comes once."""

    asks_for_records = False

    @pytest.fixture
    def adapter(self, database_url: str) -> Iterator[HttpSenders]:
        made = HttpSenders(database_url)
        yield made
        made.close()
