"""Run Forebay's conformance suite of sources on a WebSocket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from feed import Feed

from forebay.testing.sources import SourceConformance

if TYPE_CHECKING:
    from collections.abc import Iterator


class TestWebSocket(SourceConformance):
    """At most once."""

    @pytest.fixture
    def adapter(self) -> Iterator[Feed]:
        feed = Feed()
        yield feed
        feed.close()
