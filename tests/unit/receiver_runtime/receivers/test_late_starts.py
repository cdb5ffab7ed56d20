"""Check each source: an ``on_start`` so slow that its ``on_stop`` is called first leaves no reader behind."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.run_receiver import RunReceiver
from receiver_runtime.sources.source_registry import parse_source
from receiver_runtime.supervisor.lifecycle import SupervisorState
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.sources.least_declarations import LEAST
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from pathlib import Path

_SECONDS = 30.0


class _SlowRun:
    """Stands for a source's reader; making it takes long."""

    def __init__(self) -> None:
        self.may_be_made = threading.Event()
        self.begins: list[str] = []

    def __call__(self) -> _SlowRun:
        assert self.may_be_made.wait(_SECONDS)
        return self

    def start(self) -> None:
        self.begins.append("start")

    def stop(self) -> None:
        self.begins.append("stop")


@pytest.mark.parametrize("kind", sorted(set(LEAST) - {"custom"}))
def test_x11_a_start_that_comes_after_its_stop_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    slow = _SlowRun()
    receiver = make_receiver(parse_source({"kind": kind, **LEAST[kind]}))
    assert isinstance(receiver, RunReceiver)
    monkeypatch.setattr(receiver, "make_run", slow)
    stopped = threading.Event()
    on_stop = receiver.on_stop

    def stop() -> None:
        on_stop()
        stopped.set()

    monkeypatch.setattr(receiver, "on_stop", stop)
    with rig(tmp_path, receiver, receiver_start_timeout="10ms") as made:
        eventually(lambda: any("on_start has not returned" in message for _, message, _ in made.reporter.events))
        made.supervisor.lifecycle.stop("the test is over")
        assert stopped.wait(_SECONDS)
        assert made.supervisor.lifecycle.state is SupervisorState.STOPPED
        slow.may_be_made.set()
        made.end()
    assert slow.begins.count("start") == slow.begins.count("stop")
