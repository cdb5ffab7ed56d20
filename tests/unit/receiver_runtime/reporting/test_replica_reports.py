"""Check what operators read about replicas."""

from __future__ import annotations

from receiver_runtime.reporting.receiver_reporter import ReceiverReporter
from receiver_runtime.reporting.replica_reports import ReplicaReports
from tracker_store.schema.states import ReceiverEventKind, ReceiverState


class Events(ReceiverReporter):
    def __init__(self) -> None:
        self.told: list[tuple[ReceiverEventKind, str, str]] = []

    def state(self, state: ReceiverState, reason: str) -> None:
        raise AssertionError("a lost replica is no state of the receiver")

    def reason(self, reason: str) -> None:
        raise AssertionError("a lost replica is no reason of the receiver's state")

    def event(self, kind: ReceiverEventKind, message: str, detail: str = "") -> None:
        self.told.append((kind, message, detail))


def test_h02_a_lost_replica_and_its_return_are_events_that_name_it() -> None:
    events = Events()
    reports = ReplicaReports(events, receiver_id=7)
    reports.on_replica_lost("/mnt/b", "no answer in 30 s")
    reports.on_replica_back("/mnt/b")
    reports.on_replica_damaged("/mnt/b", 7, "wrong checksum")
    assert [(kind, message) for kind, message, _ in events.told] == [
        (ReceiverEventKind.ERROR, "the block store's replica /mnt/b is lost"),
        (ReceiverEventKind.CONNECTED, "the block store's replica /mnt/b is back"),
        (ReceiverEventKind.ERROR, "the block store's replica /mnt/b is damaged or lags"),
    ]
    assert "no answer" in events.told[0][2]
    assert "forebay blocks repair" in events.told[1][2]
