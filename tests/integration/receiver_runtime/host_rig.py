"""Run one host's real agent with real receiver processes; each receiver has its own source of numbered lines."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import psutil
import sqlalchemy as sa

from forebay.testing.receiver_processes import eventually
from receiver_runtime.agent.agent import Agent, AgentSettings
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from tests.integration.receiver_runtime.receiver_rig import NumberedSource
from tests.support.polling import joined
from tests.support.receivers.forked_receiver import PROGRAM, ForkingStarter
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect, create_engine

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from receiver_runtime.agent.child_process import ChildProcess
    from receiver_runtime.agent.left_processes import LeftProcesses


class HostRig:
    """Receivers of one stream each, by name; the records they registered; and the processes that run them."""

    def __init__(
        self,
        database_url: str,
        root: Path,
        *,
        receivers_per_process: int | None,
        poison_port: int = 0,
        spare: bool = False,
        left_processes: LeftProcesses | None = None,
        host: str = "here",
        forks: bool = True,
    ) -> None:
        self._database_url = database_url
        self._poison_port = poison_port
        self.root = root
        self.engine = create_engine(database_url, application_name="tests")
        self._stop = threading.Event()
        settings = AgentSettings(
            name=host,
            host=host,
            slots=1000,
            receiver_command=self._command,
            role_commands={},
            log_directory=root / ("logs" if host == "here" else f"logs-{host}"),
            receivers_per_process=receivers_per_process,
            spare_command=self._program("--spare") if spare else None,
        )
        self._started: list[ChildProcess] = []
        starter = partial(ForkingStarter, started=self._started, forks=forks)
        with patch("receiver_runtime.agent.agent.ChildStarter", starter):
            self._agent = Agent(self.engine, settings, left_processes=left_processes)
        self._thread = threading.Thread(target=self._agent.run, args=(self._stop,), name="agent")

    def _command(self, receivers: Sequence[tuple[int, int]]) -> list[str]:
        return self._program(*("{}:{}".format(*pair) for pair in receivers))

    def _program(self, *words: str) -> list[str]:
        return [*PROGRAM, self._database_url, str(self.root / "blocks"), str(self._poison_port), *words]

    def start(self) -> None:
        """Start the agent; return when this agent (not an earlier one) has registered."""
        agents = "SELECT coalesce(max(id), 0) FROM forebay.processes WHERE kind = 'agent'"
        before = self.execute(agents)[0][0]
        self._thread.start()
        eventually(lambda: self.execute(agents)[0][0] > before, "the agent")

    def stop(self) -> None:
        """Stop the agent as SIGTERM does; return when all of its processes have ended."""
        self._stop.set()
        joined(self._thread)

    def execute(self, statement: str, **values: object) -> list[Any]:
        """Execute one statement and return its rows."""
        with connect(self.engine) as connection:
            result = connection.execute(sa.text(statement), values)
            return list(result) if result.returns_rows else []

    def declare(self, name: str, source: Mapping[str, Any], **settings: object) -> int:
        """Declare a stream with one receiver; return the receiver's id."""
        declaration = {"source": source, "settings": {"receiver_restart_delay": "50ms", **settings}}
        with connect(self.engine) as connection:
            apply_stream(connection, name=name, declaration=declaration, receivers=1)
        [(receiver_id,)] = self.execute(
            "SELECT r.id FROM forebay.receivers r JOIN forebay.streams s ON s.id = r.stream_id WHERE s.name = :n",
            n=name,
        )
        return int(receiver_id)

    def place(self, *receiver_ids: int) -> None:
        """Place the receiver as the tracker does: on this host, under a new assignment."""
        self.execute(
            "UPDATE forebay.receivers SET state = 'SCHEDULED', assignment = assignment + 1, process_id = NULL, "
            "agent_id = (SELECT max(id) FROM forebay.processes WHERE kind = 'agent') WHERE id = ANY (:ids)",
            ids=list(receiver_ids),
        )

    def move_away(self, receiver_id: int) -> None:
        """Take the receiver away as the tracker does when the receiver is to run elsewhere."""
        self.execute(
            "UPDATE forebay.receivers SET state = 'INACTIVE', assignment = assignment + 1, agent_id = NULL, "
            "process_id = NULL WHERE id = :id",
            id=receiver_id,
        )

    def processes(self) -> list[psutil.Process]:
        """Return the receiver processes that are running."""
        return [psutil.Process(child.process.pid) for child in self._started if _is_running(child.process)]

    def records(self) -> dict[int, int]:
        """Return the number of registered records by receiver."""
        rows = self.execute("SELECT receiver_id, max(total_records) FROM forebay.blocks GROUP BY 1")
        return {receiver_id: int(records) for receiver_id, records in rows}

    def epochs(self) -> dict[int, int]:
        """Return how often each receiver was claimed."""
        rows = self.execute("SELECT receiver_id, count(*) FROM forebay.blocks WHERE segment_id IS NULL GROUP BY 1")
        return {receiver_id: int(count) for receiver_id, count in rows}

    def flow(self, receiver_ids: Sequence[int], records: int = 20) -> None:
        """Return when each of these receivers has registered `more` further records."""
        goals = {receiver_id: self.records().get(receiver_id, 0) + records for receiver_id in receiver_ids}
        eventually(
            lambda: all(self.records().get(receiver_id, 0) >= goal for receiver_id, goal in goals.items()),
            f"{records} more records of each",
        )

    def numbers(self, receiver_id: int) -> list[int]:
        """Return the numbers of all registered blocks in order; check each block against its row."""
        store = LocalBlockStore(self.root / "blocks")
        rows = self.execute(
            'SELECT s.path, b."offset", b.length, b.crc32c FROM forebay.blocks b '
            "JOIN forebay.log_segments s ON s.id = b.segment_id WHERE b.receiver_id = :r ORDER BY b.sequence",
            r=receiver_id,
        )
        batches = (batch for row in rows for batch in store.read_batches(*row))
        return [int(value) for batch in batches for value in batch.column(0).to_pylist()]

    def states(self) -> dict[int, tuple[str, str]]:
        """Return state and reason by receiver."""
        return {row.id: (row.state, row.reason) for row in self.execute("SELECT * FROM forebay.receivers")}

    def events(self, kind: str) -> dict[int, list[str]]:
        """Return the messages of one kind of event by receiver."""
        found: dict[int, list[str]] = {}
        for row in self.execute("SELECT * FROM forebay.receiver_events WHERE kind = :k ORDER BY id", k=kind):
            found.setdefault(row.receiver_id, []).append(row.message)
        return found


@contextmanager
def host_rig(
    database_url: str,
    root: Path,
    *,
    receivers: int,
    receivers_per_process: int | None,
    poison: bool = False,
    spare: bool = False,
    forks: bool = True,
    **settings: str,
) -> Iterator[tuple[HostRig, dict[int, NumberedSource]]]:
    """Start a host with this number of receivers; yield it with its sources by receiver id. No receiver is placed yet.

    With `poison`, the source that is declared last ends every process in which a receiver starts to read it. Processes
    are forked from one that has loaded their code, unless `forks` is False.
    """
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(NumberedSource(pause=0.02))) for _ in range(receivers)]
        rig = HostRig(
            database_url,
            root,
            receivers_per_process=receivers_per_process,
            poison_port=sources[-1].port if poison else 0,
            spare=spare,
            forks=forks,
        )
        stack.callback(rig.engine.dispose)
        by_id = {}
        for number, source in enumerate(sources):
            declared = SocketText(host="127.0.0.1", port=source.port).model_dump(mode="json")
            by_id[rig.declare(f"numbers{number}", declared, **{"block_interval": "100ms", **settings})] = source
        rig.start()
        stack.callback(rig.stop)
        yield rig, by_id


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    # Once the agent has taken its exit code another process may have its pid.
    if process.returncode is not None:
        return False
    try:
        return bool(psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        # The process has just ended.
        return False
