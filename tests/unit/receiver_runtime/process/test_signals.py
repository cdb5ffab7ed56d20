"""Check that a signal is handled on any thread that gets it, even while the main thread waits for a lock."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from receiver_runtime.process.parent_watch import ParentWatcher
from tests.support.polling import joined

_LOOKS = 20


def _main_thread_sleeps() -> bool:
    status = Path(f"/proc/self/task/{threading.main_thread().native_id}/status").read_text(encoding="ascii")
    return "State:\tS" in status


def test_a_signal_on_another_thread_is_handled_while_the_main_thread_waits() -> None:
    heard: list[str] = []
    waiting = threading.Lock()
    waiting.acquire()

    def stop(reason: str) -> None:
        heard.append(reason)
        if heard == [reason]:
            waiting.release()

    def send() -> None:
        asleep = 0
        while asleep < _LOOKS:
            asleep = asleep + 1 if _main_thread_sleeps() else 0
            done.wait(0.005)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        if not done.wait(20):
            # The signal was not handled: let the main thread continue anyway.
            heard.append("nothing")
            waiting.release()

    done = threading.Event()
    before = signal.getsignal(signal.SIGTERM)
    watcher = ParentWatcher(stop, lambda _: None, parent_pipe=None)
    watcher.start()
    sender = threading.Thread(target=send)
    sender.start()
    # Wait without a timeout, as the process waits for its receivers.
    waiting.acquire()
    done.set()
    joined(sender)
    watcher.stop()
    assert heard == ["SIGTERM"]
    assert signal.getsignal(signal.SIGTERM) is before
