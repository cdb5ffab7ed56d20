"""Check what every source must do, whatever it is: the conformance suite of sources. Yours contributes its adapter.

A source's tests are a child of ``SourceConformance`` with a fixture ``adapter``, on its real broker, and the fixtures
of ``forebay.testing.fixtures``; docs/how-to/add-a-source.md shows how. Receivers run as processes on a driver log of
their own; the suite kills them, pauses them and cuts them off.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pytest

from forebay.testing.cutting_proxy import CuttingProxy, through
from forebay.testing.receiver_processes import DEADLINE_SECONDS, cut_off_until, eventually
from forebay.testing.sending import Sending
from receiver_runtime.watching.exit_codes import ExitCode
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from forebay.testing.source_rig import MakeRig, SourceRig
    from receiver_runtime.sources.source import Source

__all__ = [
    "Sending",
    "SourceAdapter",
    "SourceConformance",
    "check_acknowledged_when_registered",
    "check_taken_over_from_a_live_receiver",
    "eventually",
]

_FIRST_BLOCKS = 20


class SourceAdapter(Protocol):
    """Send records to a source's broker, and know everything that was sent there."""

    def source(self, **changes: Any) -> Source:  # noqa: ANN401  fields of its own
        """Return the declaration that reads it."""
        ...

    def send(self, records: int) -> None:
        """Send this many records; return when the broker has them."""
        ...

    def send_odd(self) -> int:
        """Send unusual but allowed records (empty, very large); return how many."""
        ...

    def sending(self) -> AbstractContextManager[object]:
        """Send all the time, on a thread; when the context ends, the broker has every record."""
        ...

    def away(self) -> AbstractContextManager[object]:
        """Kill the broker; start it again when the context ends."""
        ...

    def all_came(self, rig: SourceRig) -> bool:
        """Return whether as many records are registered as were sent."""
        ...

    def check(self, rig: SourceRig) -> None:
        """Assert the source's guarantee: each record came (once)."""
        ...


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the process in order."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_SECONDS) == ExitCode.STOPPED


@contextmanager
def proxied(database_url: str) -> Iterator[tuple[CuttingProxy, str]]:
    """Open a path to the driver log that can be cut."""
    made = CuttingProxy(database_url)
    try:
        yield made, through(database_url, made.port)
    finally:
        made.close()


def hold_unregistered(rig: SourceRig, proxy: CuttingProxy, blocks: int = 2) -> None:
    """Cut the driver log off until blocks are stored that are not registered."""
    eventually(lambda: rig.registered_blocks() > _FIRST_BLOCKS, "blocks")
    cut_off_until(
        proxy,
        lambda: rig.is_cut_off() and rig.stored_frames() >= rig.registered_blocks() + blocks,
        rig.registered_blocks,
        "stored blocks that are not registered",
    )


def check_acknowledged_when_registered(
    adapter: SourceAdapter, rig: SourceRig, database_url: str, pending: Callable[[], int]
) -> None:
    """Check that records are acknowledged once they are registered, on a broker that reports unacknowledged ones."""
    with proxied(database_url) as (proxy, url):
        process = rig.start(database_url=url)
        with adapter.sending():
            hold_unregistered(rig, proxy)
        assert pending() > 0
        proxy.away = False
        eventually(lambda: adapter.all_came(rig), "everything")
        eventually(lambda: pending() == 0, "the acknowledgements")
        stop(process)
    adapter.check(rig)


def check_taken_over_from_a_live_receiver(adapter: SourceAdapter, rig: SourceRig, database_url: str) -> None:
    """Check redelivery to a second receiver of records that the paused first one still holds in blocks."""
    with proxied(database_url) as (proxy, url):
        first = rig.start(0, database_url=url)
        with adapter.sending():
            eventually(lambda: rig.registered() > 200, "200 records")
            hold_unregistered(rig, proxy)
            first.send_signal(signal.SIGSTOP)
        second = rig.start(1)
        eventually(lambda: adapter.all_came(rig), "everything, by the second")
        proxy.away = False
        first.send_signal(signal.SIGCONT)
        adapter.send(100)
        eventually(lambda: adapter.all_came(rig), "what came since")
        # The first receiver hands over what it has before it ends.
        stop(first)
        stop(second)
    adapter.check(rig)


class SourceConformance:
    """See the module."""

    #: Whether other receivers get the records sent to a receiver that is gone; if not, they wait for its restart.
    moves_to_others: ClassVar[bool] = True
    #: Whether receivers ask for records; if not, they wait for senders, and don't notice that there are none.
    asks_for_records: ClassVar[bool] = True
    #: Whether receivers say how much the source has that they have not read (``Receiver.report_unread``).
    reports_unread: ClassVar[bool] = False

    @pytest.mark.core
    def test_reads_existing_and_new_records_and_drains_at_a_stop(
        self, adapter: SourceAdapter, make_rig: MakeRig
    ) -> None:
        adapter.send(500)
        rig = make_rig(adapter.source())
        process = rig.start()
        eventually(lambda: adapter.all_came(rig), "what was there")
        with adapter.sending():
            eventually(lambda: rig.registered() > 1000, "what comes")
            stop(process)
        second = rig.start()
        # It may have nothing to read: the first one came to the end of what was sent.
        eventually(
            lambda: [kind for kind, _, _ in rig.events()].count(ReceiverEventKind.STARTED) == 2, "a second process"
        )
        eventually(lambda: adapter.all_came(rig), "the rest, by a second process")
        if self.reports_unread:
            eventually(lambda: rig.unread() == 0, "that nothing is unread")
        stop(second)
        adapter.check(rig)

    @pytest.mark.core
    def test_odd_records_come_and_block_nothing(self, adapter: SourceAdapter, make_rig: MakeRig) -> None:
        rig = make_rig(adapter.source())
        process = rig.start()
        adapter.send(10)
        assert adapter.send_odd()
        adapter.send(10)
        eventually(lambda: adapter.all_came(rig), "all of them")
        stop(process)
        adapter.check(rig)

    @pytest.mark.core
    def test_killed_between_storing_and_registering(
        self, adapter: SourceAdapter, make_rig: MakeRig, database_url: str
    ) -> None:
        rig = make_rig(adapter.source())
        with proxied(database_url) as (proxy, url):
            process = rig.start(database_url=url)
            with adapter.sending():
                eventually(lambda: rig.registered() > 200, "200 records")
                hold_unregistered(rig, proxy)
                process.kill()
                process.wait(60)
        second = rig.start()
        eventually(lambda: adapter.all_came(rig), "everything")
        stop(second)
        adapter.check(rig)

    def test_fenced_by_another_process(self, adapter: SourceAdapter, make_rig: MakeRig, database_url: str) -> None:
        """Pause the first process while it holds blocks; resume it once a second process has the receiver."""
        rig = make_rig(adapter.source())
        with proxied(database_url) as (proxy, url):
            first = rig.start(database_url=url)
            with adapter.sending():
                eventually(lambda: rig.registered() > 200, "200 records")
                hold_unregistered(rig, proxy)
                first.send_signal(signal.SIGSTOP)
                second = rig.start(assignment=2)
                before = rig.registered()
                eventually(lambda: rig.registered() > before + 200, "what the second one reads")
                proxy.away = False
                first.send_signal(signal.SIGCONT)
                assert first.wait(DEADLINE_SECONDS) == ExitCode.FENCED
        eventually(lambda: adapter.all_came(rig), "everything")
        stop(second)
        adapter.check(rig)

    def test_it_loses_its_broker_and_finds_it_again(self, adapter: SourceAdapter, make_rig: MakeRig) -> None:
        rig = make_rig(adapter.source())
        process = rig.start()
        with adapter.sending():
            eventually(lambda: rig.registered() > 200, "200 records")
            with adapter.away():
                if self.asks_for_records:
                    eventually(lambda: rig.reason().startswith("degraded: "), "what operators are told")
            before = rig.registered()
            eventually(lambda: rig.registered() > before + 200, "records after it")
        eventually(lambda: adapter.all_came(rig), "everything")
        eventually(lambda: not rig.reason().startswith("degraded: "), "that it is well is shown")
        stop(process)
        adapter.check(rig)

    def test_the_driver_log_goes_away_and_comes_back(
        self, adapter: SourceAdapter, make_rig: MakeRig, database_url: str
    ) -> None:
        rig = make_rig(adapter.source())
        with proxied(database_url) as (proxy, url):
            process = rig.start(database_url=url)
            with adapter.sending():
                eventually(lambda: rig.registered() > 200, "200 records")
                hold_unregistered(rig, proxy)
                proxy.away = False
                before = rig.registered()
                eventually(lambda: rig.registered() > before + 200, "records after it")
            eventually(lambda: adapter.all_came(rig), "everything")
            stop(process)
        adapter.check(rig)

    @pytest.mark.core
    def test_a_throttled_receiver_says_what_the_source_has(self, adapter: SourceAdapter, make_rig: MakeRig) -> None:
        if not self.reports_unread:
            pytest.skip("the source does not say what is unread")
        # More than it can read before it looks again: on a busy machine, looks are seconds apart.
        adapter.send(3000)
        rig = make_rig(adapter.source(), receiver_max_rate=100)
        process = rig.start()
        eventually(lambda: rig.registered() and rig.unread() > 0, "what is unread")
        before = rig.source_end()
        adapter.send(3000)
        eventually(lambda: rig.source_end() > before, "what was sent since")
        assert not adapter.all_came(rig)
        stop(process)

    def test_receivers_come_and_go_while_records_come(self, adapter: SourceAdapter, make_rig: MakeRig) -> None:
        if (reason := adapter.source().one_receiver) is not None:
            pytest.skip(reason)
        rig = make_rig(adapter.source(), receivers=2)
        first = rig.start(0)
        with adapter.sending():
            eventually(lambda: rig.registered() > 200, "200 records")
            second = rig.start(1)
            eventually(lambda: rig.registered_of(1) > 100, "records by the second")
            stop(first)
            before = rig.registered()
            eventually(lambda: rig.registered() > before + 200, "records without the first")
            third = rig.start(0)
            before = rig.registered_of(0)
            eventually(lambda: rig.registered_of(0) > before + 100, "records by the first again")
            second.kill()
            second.wait(60)
        if not self.moves_to_others:
            rig.start(1)
        eventually(lambda: adapter.all_came(rig), "everything")
        stop(third)
        adapter.check(rig)
