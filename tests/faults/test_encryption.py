"""Search a whole system that encrypts blocks for its key and its records: home, database, logs, command lines."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

import psutil
import pyarrow.dataset as ds
import pytest

from tests.support.commands.run_program import run_program
from tests.support.machine.state_directory import state_directory
from tests.support.receivers.block_keys import dump, files_with, new_key, spellings
from tests.support.systems.running_system import running_system
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

pytestmark = [pytest.mark.systems, pytest.mark.spark, pytest.mark.timeout(1200)]

VARIABLE = "BLOCKS_OF_THIS_TEST"
# In parts: the system keeps copies of its modules, this one among them.
PRIVATE = b" ".join((b"has", b"the", b"mumps"))
LINES = [b"patient %05d %b" % (number, PRIVATE) for number in range(3000)]
BAD = b"pati\xebnt %b" % PRIVATE


class PrivateSource:
    """Send the lines, one of them not in UTF-8, to the first client, and then nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        self._thread.join(20)
        self._listener.close()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.sendall(b"\n".join([*LINES, BAD, b""]))
            self._stopped.wait(60)


def forebay(home: Path, *words: str, **settings: str) -> tuple[int, str]:
    """Run a command in the home; return its exit code and everything that it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "DAGSTER_"))}
    done = run_program(
        [sys.executable, "-m", "forebay.cli", *words],
        env=environment | {"FOREBAY_HOME": str(home)} | settings,
        timeout=450,
    )
    return done.returncode, done.stdout + done.stderr


def lines_that_came_out(home: Path) -> int:
    output = home / "output"
    if not output.exists():
        return 0
    written = ds.dataset(output, partitioning="hive", format="parquet")
    if not written.files:
        return 0
    return sum(count or 0 for count in written.to_table(["lines"])["lines"].to_pylist())


def command_lines() -> set[str]:
    """Return the command lines of all processes of this machine that can be read."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found.add(" ".join(process.cmdline()))
    return found


def test_a_system_that_encrypts_shows_neither_key_nor_records() -> None:
    key = new_key()
    with state_directory() as home:
        (home / "events").mkdir()
        configuration = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.dir": (home / "events").as_uri(),
            "spark.local.dir": str(home / "local"),
        }
        settings = {
            "FOREBAY_BLOCK_KEY": f"env:{VARIABLE}",
            VARIABLE: key,
            "FOREBAY_SPARK_CONFIGURATION": json.dumps(configuration),
        }
        seen: set[str] = set()
        source: Any = PrivateSource()
        with source, running_system(home, source, "tests.faults.private_pipeline", **settings) as system:

            def all_came_out() -> bool:
                seen.update(command_lines())
                return lines_that_came_out(home) == len(LINES)

            system.until("all lines came out", all_came_out, seconds=300)
            code, verified = forebay(home, "blocks", "verify", "--json", **settings)
            assert (code, json.loads(verified)["intact"]) == (0, True)
            assert len(json.loads(verified)["keys"]) == 1
            said = [verified]
            said += [
                forebay(home, word, "--json", **settings)[1] for word in ("doctor", "status", "batches", "receivers")
            ]
            # Without the key, nothing can be read, and the command says which key and which setting.
            refused, told = forebay(home, "blocks", "verify", "--json")
            assert refused == 1
            assert "FOREBAY_BLOCK_KEYS_FOR_READING" in told
            said.append(told)
            with connect(system.engine) as connection:
                rows = dump(connection)
            local = files_with(home / "local", [PRIVATE, *spellings(key)])
        assert f"env:{VARIABLE}" in said[1]
        wanted = [PRIVATE, *spellings(key)]
        assert local == []
        # Everything else: blocks, logs of all processes, compute logs of the runs, Spark's event log, the database's
        # own files, and the output, which has no line.
        assert files_with(home, wanted) == []
        for text in wanted:
            assert text not in rows
            assert text not in "\n".join(said).encode()
            assert text not in "\n".join(seen).encode()
        assert any("receiver" in line for line in seen)


def test_up_does_not_start_without_the_key_that_is_named() -> None:
    with state_directory() as home:
        settings = {"FOREBAY_BLOCK_KEY": f"file:{home}/none", "NUMBERS_PORT": "9", "NUMBERS_OUTPUT": str(home / "out")}
        code, said = forebay(home, "up", "tests.faults.private_pipeline", "--ui-port", "0", **settings)
        assert code == 1
        # The terminal's width breaks lines.
        line = " ".join(said.split())
        assert line.startswith("FOREBAY_BLOCK_KEY: No such file or directory")
        assert line.endswith(f"put the secret into file:{home}/none")
        assert "Traceback" not in said
        assert not (home / "postgres").exists()
