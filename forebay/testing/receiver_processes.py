"""Start receiver processes as an agent does, each for one receiver, with their logs; for the rigs of a stream."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Protocol

import sqlalchemy as sa

from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# A process needs 1 s of CPU to start: on a machine that gives it a fiftieth of a core, most of this time.
DEADLINE_SECONDS = 90.0
_STEP_SECONDS = 0.02
_HOLD_SECONDS = 15.0  # how long to wait for blocks that can't be registered: many block intervals

_RUN = """
import sys
from receiver_runtime.process.receiver_process import run
from receiver_runtime.sources.fields.secret import Secret
receiver_id, assignment, database_url, block_store, *keys = sys.argv[1:]
first, *others = [Secret(key) for key in keys] or [None]
receivers = [(int(receiver_id), int(assignment))]
where = {"database_url": database_url, "block_store": block_store}
sys.exit(run(receivers, **where, block_key=first, keys_for_reading=others))
"""


def eventually(predicate: Callable[[], object], what: str, *, seconds: float = DEADLINE_SECONDS) -> None:
    """Poll until `predicate` holds; fail the test at a deadline that is far off normal times."""
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}, in vain"
        time.sleep(_STEP_SECONDS)


class Cuttable(Protocol):
    """Name what a proxy to the driver log must have: `away` refuses new connections, `cut` breaks all."""

    away: bool

    def cut(self) -> None: ...


def cut_off_until(
    proxy: Cuttable, holds_unregistered: Callable[[], bool], registered: Callable[[], int], what: str
) -> None:
    """Cut the driver log off until a receiver holds what `what` names: stored blocks that are not registered.

    A receiver that just then needs an answer before it can go on (whether keys are known, where a file that has rotated
    goes on) makes no blocks until it has that answer. So the driver log comes back, and is cut off again.
    """

    def holds_some() -> bool:
        proxy.away = True
        proxy.cut()
        deadline = time.monotonic() + _HOLD_SECONDS
        while time.monotonic() < deadline:
            if holds_unregistered():
                return True
            time.sleep(0.05)
        proxy.away = False
        before = registered()
        eventually(lambda: registered() > before, "something is registered with the driver log back")
        return False

    eventually(holds_some, what)


@dataclass
class ReceiverProcesses:
    """Hold the receiver processes of a test; `close` ends all of them."""

    database_url: str
    root: Path
    engine: sa.Engine
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)

    def execute(self, statement: str, **values: object) -> list[Any]:
        with connect(self.engine) as connection:
            result = connection.execute(sa.text(statement), values)
            return list(result) if result.returns_rows else []

    def is_cut_off(self) -> bool:
        """Return whether no receiver has a session: then the server has ended what it was sent before a cut, too."""
        return not self.execute(
            "SELECT pid FROM pg_catalog.pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'forebay receiver %'"
        )

    def place(self, receiver_id: int, assignment: int) -> None:
        """Place a receiver, as the tracker does before a process is started for it."""
        self.execute(
            "UPDATE forebay.receivers SET assignment = :a, state = 'SCHEDULED', process_id = NULL WHERE id = :r",
            a=assignment,
            r=receiver_id,
        )

    def spawn(
        self,
        receiver_id: int,
        assignment: int,
        *,
        block_store: str,
        database_url: str | None,
        first: str,
        block_keys: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a process; its interpreter runs the code `first` first (a test's seam)."""
        self.root.mkdir(parents=True, exist_ok=True)
        url = database_url or self.database_url
        with (self.root / f"process-{len(self.processes)}.log").open("wb") as log:
            arguments = [str(receiver_id), str(assignment), url, block_store]
            process = self._launch(first, [*arguments, *block_keys], log)
        self.processes.append(process)
        return process

    def _launch(self, first: str, arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", first + _RUN, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(60)
            if process.stdin is not None:
                process.stdin.close()
        self.engine.dispose()
        # Shown with a test that fails.
        print(self.logs())  # noqa: T201

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.root.glob("process-*.log")))
