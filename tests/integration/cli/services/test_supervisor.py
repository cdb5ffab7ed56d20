"""Test the supervisor on small real processes: order, restarts, Ctrl-C, and nothing left after any kill."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from forebay.cli.services.child import Child, ChildEvent, ChildEventKind, ChildState, RestartPolicy, SupervisorError
from forebay.cli.services.run_files import TOKEN_VARIABLE, ProcessIdentity, RunFile
from forebay.cli.services.supervisor import StopReason, StopRequestedError, Supervisor
from tests.support.polling import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MARK = "FOREBAY_TEST_MARK"

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
)
"""Heeds no SIGTERM."""

WITH_GRANDCHILDREN = (
    "import subprocess, sys, time\n"
    "wait = [sys.executable, '-c', 'import time; time.sleep(300)']\n"
    "subprocess.Popen(wait)\n"
    "subprocess.Popen(wait, start_new_session=True)\n"
    "print('up', flush=True)\n"
    "time.sleep(300)\n"
)
"""One in its own process group, and one that left it."""

OWN = "import sys; print('up', flush=True); sys.stdin.read()"
"""As Forebay's own children: watches its standard input."""


def marked(mark: str) -> list[psutil.Process]:
    """Return all living processes with this mark in their environment, however many steps started them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def mark(home: Path) -> Iterator[str]:
    yield str(home)
    for process in marked(str(home)):
        process.kill()


@pytest.fixture
def sleeper(mark: str) -> Callable[..., Child]:
    """Return a function that makes a child of Python code, which prints "up" when it is ready."""

    def make(name: str, code: str = "print('up', flush=True); import time; time.sleep(300)", **more: object) -> Child:
        log = Path(mark) / "logs" / f"{name}.log"
        fields = {
            "ready": lambda: "up" in log.read_text(),
            "restart": RestartPolicy(first=0.05, most=0.2),
            "stop_grace": 5.0,
            **more,
        }
        return Child(name, [sys.executable, "-c", code], {_MARK: mark}, **fields)  # type: ignore[arg-type]

    return make


class Recorder:
    """Record the events of a supervisor."""

    def __init__(self) -> None:
        self.events: list[ChildEvent] = []

    def __call__(self, event: ChildEvent) -> None:
        self.events.append(event)

    def kinds(self, name: str) -> list[ChildEventKind]:
        return [event.kind for event in self.events if event.name == name]

    def names(self, kind: ChildEventKind) -> list[str]:
        return [event.name for event in self.events if event.kind is kind]


def test_starts_in_order_and_stops_in_reverse(home: Path, mark: str, sleeper: Callable[..., Child]) -> None:
    seen = Recorder()
    with Supervisor(home, seen) as supervisor:
        supervisor.start([sleeper("first")])
        assert seen.kinds("first") == [ChildEventKind.STARTED, ChildEventKind.READY]
        supervisor.start([sleeper("second", OWN, guarded=False), sleeper("third")])
        assert [status.state for status in supervisor.statuses()] == [ChildState.READY] * 3
        for name in ("first", "second", "third"):
            pid = supervisor.pid(name)
            assert pid is not None
            assert psutil.Process(pid).cmdline()[1] == "-c", "the pid is the command's, not its guard's"
    stopped = seen.names(ChildEventKind.STOPPED)
    assert set(stopped[:2]) == {"second", "third"}
    assert stopped[2] == "first"
    assert marked(mark) == []
    assert list((home / "run").iterdir()) == []


def test_restarts_of_a_killed_child_back_off(home: Path, sleeper: Callable[..., Child]) -> None:
    seen = Recorder()
    with Supervisor(home, seen) as supervisor:
        supervisor.start([sleeper("victim")])
        for round_ in range(1, 4):
            pid = supervisor.pid("victim")
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: seen.kinds("victim").count(ChildEventKind.STARTED) > round_, "started again")  # noqa: B023
        assert supervisor.statuses()[0].restarts == 3
    exits = [event.exit_code for event in seen.events if event.kind is ChildEventKind.EXITED]
    assert exits[:3] == [128 + signal.SIGKILL] * 3
    delays = [event.detail for event in seen.events if event.kind is ChildEventKind.RESTARTING]
    assert all("SIGKILL" in detail for detail in delays)
    assert not [detail for detail in delays if "its log ends" in detail], "it could not say why"


def test_a_child_that_ends_says_why_by_what_this_process_wrote_last(home: Path, sleeper: Callable[..., Child]) -> None:
    seen = Recorder()
    silent_later = (
        "import pathlib, sys; path = pathlib.Path('tried'); first = not path.exists(); path.touch()\n"
        "print('up', flush=True) if first else None\n"
        "sys.exit('no port 3000\\n' if first else 3)"
    )
    child = sleeper("broken", silent_later, ready=None, directory=home, restart=RestartPolicy(first=0.05, attempts=1))
    with Supervisor(home, seen) as supervisor:
        supervisor.start([child])
        assert supervisor.wait(20) == StopReason(failed_child="broken")
    [again] = [event.detail for event in seen.events if event.kind is ChildEventKind.RESTARTING]
    assert again.startswith("ended with code 1, is started again in ")
    assert again.endswith(" s; its log ends: no port 3000")
    [given_up] = [event.detail for event in seen.events if event.kind is ChildEventKind.FAILED]
    assert given_up == "ended with code 3"


def test_a_restart_on_request_is_no_failure(home: Path, sleeper: Callable[..., Child]) -> None:
    seen = Recorder()
    with Supervisor(home, seen) as supervisor:
        # A failure would give it up.
        supervisor.start([sleeper("served", restart=RestartPolicy(attempts=0))])
        before = supervisor.pid("served")
        supervisor.restart("served")
        eventually(lambda: seen.kinds("served").count(ChildEventKind.READY) > 1, "ready again")
        assert supervisor.pid("served") not in {before, None}
        with pytest.raises(KeyError):
            supervisor.restart("nobody")
    assert ChildEventKind.RESTARTING not in seen.kinds("served")


def test_the_backoff_is_bounded_and_jittered() -> None:
    policy = RestartPolicy(first=0.5, factor=2, most=15, jitter=0.2)
    assert [policy.delay(failures, 0.5) for failures in (1, 2, 3, 4, 5, 6, 7)] == [0.5, 1, 2, 4, 8, 15, 15]
    assert policy.delay(10**9, 0.5) == 15
    assert policy.delay(1, 0.0) == pytest.approx(0.4)
    assert policy.delay(1, 1.0) == pytest.approx(0.6)


def test_a_healthy_period_resets_earlier_failures(home: Path, sleeper: Callable[..., Child]) -> None:
    seen = Recorder()
    # One restart is allowed; each life counts as healthy, so it is restarted without end.
    policy = RestartPolicy(first=0.01, most=0.01, healthy_after=0.0, attempts=1)
    with Supervisor(home, seen) as supervisor:
        supervisor.start([sleeper("short", "print('up', flush=True); import time; time.sleep(0.3)", restart=policy)])
        eventually(lambda: seen.kinds("short").count(ChildEventKind.STARTED) >= 4, "the fourth start")
        assert ChildEventKind.FAILED not in seen.kinds("short")


def test_a_child_that_is_given_up_ends_the_wait(home: Path, sleeper: Callable[..., Child]) -> None:
    with Supervisor(home) as supervisor:
        policy = RestartPolicy(first=0.01, attempts=2)
        supervisor.start([sleeper("flaky", "print('up', flush=True); import time; time.sleep(0.3)", restart=policy)])
        assert supervisor.wait(20) == StopReason(failed_child="flaky")
        assert supervisor.statuses()[0].restarts == 2


@pytest.mark.parametrize(
    ("code", "within", "why"),
    [
        # Enough time to report it.
        ("raise SystemExit('no such thing')", 4, "no such thing"),
        ("import time; time.sleep(300)", 1, "not ready within 1 s"),
    ],
)
def test_a_child_that_never_gets_ready_reports_why(
    home: Path, mark: str, sleeper: Callable[..., Child], code: str, within: int, why: str
) -> None:
    child = sleeper("never", code, ready=lambda: False, ready_within=within)
    with Supervisor(home) as supervisor, pytest.raises(SupervisorError, match=why):
        supervisor.start([child])
    assert marked(mark) == []


def test_a_missing_command_is_reported(home: Path) -> None:
    child = Child("ghost", ["/no/such/program"], restart=RestartPolicy(attempts=0), ready=lambda: False)
    with Supervisor(home) as supervisor, pytest.raises(SupervisorError, match="/no/such/program"):
        supervisor.start([child])
    unguarded = Child("ghost", ["/no/such/program"], restart=RestartPolicy(attempts=0), guarded=False)
    with Supervisor(home) as supervisor, pytest.raises(SupervisorError, match="ghost is not ready"):
        supervisor.start([unguarded])


def test_processes_started_by_a_child_end_with_it(home: Path, mark: str, sleeper: Callable[..., Child]) -> None:
    with Supervisor(home) as supervisor:
        supervisor.start([sleeper("parent", WITH_GRANDCHILDREN, restart=RestartPolicy(attempts=0))])
        assert len(marked(mark)) == 4, "a guard, its command, and two more"
        pid = supervisor.pid("parent")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert supervisor.wait(20) == StopReason(failed_child="parent")
        assert marked(mark) == []


def test_a_stubborn_child_is_killed_after_its_grace(home: Path, mark: str, sleeper: Callable[..., Child]) -> None:
    with Supervisor(home) as supervisor:
        supervisor.start([sleeper("stubborn", STUBBORN, stop_grace=0.3)])
        supervisor.start([sleeper("unguarded", STUBBORN, stop_grace=0.3, guarded=False)])
        began = time.monotonic()
    # A guard that left the kill to its supervisor would take five seconds more.
    assert time.monotonic() - began < 5
    assert marked(mark) == []


def test_processes_left_by_a_killed_child_delay_the_next_only_for_a_short_grace(
    home: Path, mark: str, sleeper: Callable[..., Child]
) -> None:
    stubborn_child = (
        "import pathlib, signal, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print('up', flush=True)\n"
        "time.sleep(300)\n"
    )
    seen = Recorder()
    with Supervisor(home, seen) as supervisor:
        # No test waits for ten minutes: if the whole grace applied, this one would fail.
        supervisor.start([sleeper("child", stubborn_child, guarded=False, stop_grace=600.0, left_grace=0.2)])
        left = [process for process in marked(mark) if process.pid != supervisor.pid("child")]
        pid = supervisor.pid("child")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: seen.kinds("child").count(ChildEventKind.READY) == 2, "the next one")
        assert not set(left) & set(marked(mark))
        # A stop does not wait for it either.
        supervisor.stop(at_once=True)
    assert marked(mark) == []


def test_stop_at_once_from_another_thread_speeds_up_the_stop(
    home: Path, mark: str, sleeper: Callable[..., Child]
) -> None:
    with Supervisor(home) as supervisor:
        supervisor.start([sleeper(f"stubborn_{n}", STUBBORN, stop_grace=60, guarded=n > 0) for n in range(2)])
        stopping = threading.Thread(target=supervisor.stop)
        stopping.start()
        eventually(lambda: supervisor.wait(0) is not None, "under way")
        supervisor.stop(at_once=True)
        stopping.join(10)
        assert not stopping.is_alive()
    assert marked(mark) == []


def test_a_stop_during_a_start_cancels_the_start(home: Path, mark: str, sleeper: Callable[..., Child]) -> None:
    with Supervisor(home) as supervisor:
        threading.Timer(0.3, supervisor.request_stop).start()
        with pytest.raises(StopRequestedError):
            supervisor.start([sleeper("slow", ready=lambda: False)])
        with pytest.raises(StopRequestedError):
            supervisor.start([sleeper("later")])
        assert supervisor.wait(0) == StopReason()
    assert marked(mark) == []


def test_only_one_supervisor_per_home_and_the_other_is_named(home: Path) -> None:
    with (
        Supervisor(home),
        pytest.raises(SupervisorError, match=rf"process {os.getpid()}\b.*FOREBAY_HOME"),
    ):
        Supervisor(home).__enter__()
    with Supervisor(home):
        pass


def test_a_failing_listener_has_no_effect(home: Path, mark: str, sleeper: Callable[..., Child]) -> None:
    def fail(event: ChildEvent) -> None:
        raise RuntimeError(event.name)

    with Supervisor(home, fail) as supervisor:
        supervisor.start([sleeper("child")])
    assert marked(mark) == []


# --- kills of the supervisor itself, so it is a process of its own ---

_PROGRAM = textwrap.dedent(
    """
    import os
    import sys
    from pathlib import Path
    import structlog
    from forebay.cli.services.child import Child
    from forebay.cli.services.supervisor import Supervisor

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

    def say(line):  # whole: children's threads and the main one say things
        os.write(1, f"{line}\\n".encode())

    home, codes = Path(sys.argv[1]), sys.argv[2:]
    supervisor = Supervisor(home, lambda event: say(f"{event.kind} {event.name}"))
    with supervisor.stopping_on_signals(), supervisor:
        for number, code in enumerate(codes):
            log = home / "logs" / f"child_{number}.log"
            supervisor.start([Child(
                f"child_{number}", [sys.executable, "-c", code], guarded="stdin" not in code, stop_grace=60,
                ready=lambda log=log: "up" in log.read_text(),
            )])
        say("all up")
        reason = supervisor.wait()
        say("stopping")
    sys.exit(0 if reason.signal else 1)
    """
)


@pytest.fixture
def supervisor_process(home: Path, mark: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Yield a function that starts a supervisor of children with this code, on its own terminal.

    It returns the supervisor's process when all children are up.
    """
    started: list[subprocess.Popen[str]] = []
    terminals: list[int] = []

    def start(*codes: str) -> subprocess.Popen[str]:
        ours, its = pty.openpty()
        terminals.append(ours)
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(home), *codes],
            stdin=its,
            stdout=subprocess.PIPE,
            env={**os.environ, _MARK: mark},
            text=True,
            # The process's controlling terminal: a Ctrl-C typed there is SIGINT for the whole foreground group.
            preexec_fn=_take_terminal,
        )
        os.close(its)
        process.terminal = ours  # type: ignore[attr-defined]
        started.append(process)
        _read_until(process, "all up")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()
    for descriptor in terminals:
        os.close(descriptor)


def _take_terminal() -> None:
    import fcntl  # noqa: PLC0415
    import termios  # noqa: PLC0415

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(process: subprocess.Popen[str], line: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    while (read := process.stdout.readline()) and read.strip() != line:
        lines.append(read.strip())
    assert read, f"ended before {line!r}: {lines}"
    return lines


def _type_ctrl_c(process: subprocess.Popen[str]) -> None:
    os.write(process.terminal, b"\x03")  # type: ignore[attr-defined]


def test_ctrl_c_stops_all_in_order(mark: str, supervisor_process: Callable[..., subprocess.Popen[str]]) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: print('was shot', flush=True))\n"
        "print('up', flush=True)\n"
        "time.sleep(300)\n"
    )
    process = supervisor_process(code, code)
    _type_ctrl_c(process)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert [line for line in out.split("\n") if line.startswith("stopped")] == [
        "stopped child_1",
        "stopped child_0",
    ]
    assert marked(mark) == []
    assert "was shot" not in (Path(mark) / "logs" / "child_0.log").read_text()


def test_a_second_ctrl_c_stops_at_once(mark: str, supervisor_process: Callable[..., subprocess.Popen[str]]) -> None:
    process = supervisor_process(STUBBORN, STUBBORN + "  # stdin: unguarded", STUBBORN)
    _type_ctrl_c(process)
    _read_until(process, "stopping")
    assert process.poll() is None, "each of them has 60 s of grace"
    _type_ctrl_c(process)
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert marked(mark) == []


def test_kill_9_of_the_supervisor_leaves_nothing(
    mark: str, supervisor_process: Callable[..., subprocess.Popen[str]]
) -> None:
    process = supervisor_process(WITH_GRANDCHILDREN, OWN)
    assert len(marked(mark)) == 6
    process.kill()
    eventually(lambda: marked(mark) == [], "everything has ended by itself")


def test_a_supervisor_recovers_from_kill_9_of_a_guard(home: Path, mark: str, sleeper: Callable[..., Child]) -> None:
    seen = Recorder()
    with Supervisor(home, seen) as supervisor:
        supervisor.start([sleeper("child", WITH_GRANDCHILDREN)])
        orphans = {process.pid for process in marked(mark)}
        guard = json.loads((home / "run" / "child.json").read_text())["guard"]["pid"]
        assert guard in orphans
        os.kill(guard, signal.SIGKILL)
        eventually(lambda: seen.kinds("child").count(ChildEventKind.READY) == 2, "ready again")
        assert orphans.isdisjoint(process.pid for process in marked(mark))


def test_the_next_start_cleans_up_after_kill_9_of_guard_and_supervisor(
    home: Path, mark: str, supervisor_process: Callable[..., subprocess.Popen[str]]
) -> None:
    process = supervisor_process(WITH_GRANDCHILDREN)
    guard = json.loads((home / "run" / "child_0.json").read_text())["guard"]["pid"]
    os.kill(process.pid, signal.SIGSTOP)  # so that it can't clean up itself
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.wait(60)
    eventually(lambda: len(marked(mark)) == 3, "the command and what it started, without the guard")

    with Supervisor(home):
        assert marked(mark) == []
        assert list((home / "run").iterdir()) == []


def test_a_recycled_pid_is_never_killed(home: Path, mark: str) -> None:
    environment = {**os.environ, _MARK: mark}
    bystander = subprocess.Popen(["sleep", "300"], env=environment, start_new_session=True)
    try:
        now = ProcessIdentity.of(bystander.pid)
        assert now is not None
        earlier = ProcessIdentity(now.pid, now.created - 3600)
        (home / "run").mkdir()
        for name, which in (("a", "guard"), ("b", "command")):
            RunFile(home / "run" / f"{name}.json", name, "t", signal.SIGTERM, 1.0, **{which: earlier}).write()
        (home / "run" / "torn.json").write_text('{"name": "to')
        with Supervisor(home):
            assert bystander.poll() is None
        assert list((home / "run").iterdir()) == []
    finally:
        bystander.kill()
        bystander.wait(60)


def test_the_token_alone_identifies_left_processes(home: Path, mark: str) -> None:
    """Check after the supervisor was killed between the start of a process and the note of its pid."""
    run_file = RunFile(home / "run" / "child.json", "child", "token-1", signal.SIGTERM, 5.0)
    run_file.write()
    environment = {**os.environ, _MARK: mark, TOKEN_VARIABLE: "token-1"}
    left = subprocess.Popen(["sleep", "300"], env=environment, start_new_session=True)
    with Supervisor(home):
        assert left.wait(5) == -signal.SIGTERM
