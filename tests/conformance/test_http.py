"""HTTP by the conformance suite: real receivers, real connections, senders that send again until they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.http_source import HttpSenders
from tests.conformance.suite import ConformanceSuite

if TYPE_CHECKING:
    from collections.abc import Iterator


class TestHttp(ConformanceSuite):
    """At least once, deduplicated: with keys each record comes once."""

    @pytest.fixture
    def adapter(self, database_url: str) -> Iterator[HttpSenders]:
        made = HttpSenders(database_url)
        yield made
        made.close()
