"""Syslog in the conformance suite, over TCP with both framings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forebay.testing.sources import SourceConformance
from forebay_contrib.syslog.tests.syslog_source import SyslogSender
from receiver_runtime.sources.fields.multiline import Multiline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_contrib.syslog.declaration import Syslog

# In seconds. A test waits for several things in turn, each for as long as a process start takes on a busy machine.
pytestmark = pytest.mark.timeout(240, func_only=True)


class TestSyslog(SourceConformance):
    """At most once."""

    asks_for_records = False

    @pytest.fixture
    def adapter(self, database_url: str) -> Iterator[SyslogSender]:
        made = SyslogSender(database_url)
        yield made
        made.close()


class JoiningSender(SyslogSender):
    """Send to receivers that hold each message until the next one of its program, or for a moment."""

    def source(self, **changes: Any) -> Syslog:  # noqa: ANN401  fields of the source
        return super().source(**{"multiline": Multiline(start="^", timeout="100ms"), **changes})


@pytest.mark.slow  # it differs from the one above only by what a killed receiver holds
class TestJoinedSyslog(SourceConformance):
    """At most once, also for messages that wait for more."""

    asks_for_records = False

    @pytest.fixture
    def adapter(self, database_url: str) -> Iterator[SyslogSender]:
        made = JoiningSender(database_url)
        yield made
        made.close()
