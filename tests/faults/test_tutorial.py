"""Follow docs/how-to/tutorial.md step by step: its commands, files and answers, in their order, as a new user would."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg2
import pytest
import sqlalchemy as sa

from tests.support.machine.held_ports import held_port
from tests.support.machine.state_directory import state_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.core, pytest.mark.timeout(1200)]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "tutorial.md"
BLOCK = re.compile(r"^```(?P<kind>[^\n]+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
# An environment is there already, and the checkout is installed in it.
INSTALL = ("python3 -m venv", ". .venv", "pip install")
UP = "forebay up"
LOGIN = "SELECT session_user"
SECONDS = 240.0


@dataclass
class Reader:
    """Someone who types what the page says: `up` in one terminal, everything else in another."""

    directory: Path
    target_url: str
    environment: dict[str, str] = field(default_factory=dict)
    up: subprocess.Popen[bytes] | None = None
    answer: str = ""

    def __post_init__(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "PYTEST_"))}
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**inherited, "PATH": programs, "TERM": "dumb", "COLUMNS": "200"}

    def type_in(self, block: str) -> None:
        for line in block.splitlines():
            if line.startswith(INSTALL):
                continue
            if line.startswith("cd "):
                self.directory /= line.removeprefix("cd ")
            elif line.startswith("export TARGET_URL="):
                self.environment["TARGET_URL"] = self.target_url
            elif line == UP:
                self.start()
            elif line == "forebay stop":
                self.run(line)
                self.wait_for_up(0)
            elif line.startswith(("forebay batches show", "find", "python -c")):
                # The page says that it takes up to ten seconds: until then there is no batch, no file or no row.
                self.until(line, partial(self.finds_something, line))
            else:
                self.run(line)

    def run(self, line: str) -> None:
        assert self.try_once(line), f"{line}\n{self.answer}\n{self.log()}"

    def try_once(self, line: str) -> bool:
        done = subprocess.run(
            shlex.split(line),
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        self.answer = done.stdout.decode() if done.returncode == 0 else (done.stdout + done.stderr).decode()
        return done.returncode == 0

    def finds_something(self, line: str) -> bool:
        return self.try_once(line) and bool(self.answer.strip())

    def start(self) -> None:
        with (self.directory / "up.log").open("ab") as log:
            self.up = subprocess.Popen(
                shlex.split(UP),
                cwd=self.directory,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert self.up is None or self.up.poll() is None, f"forebay up has ended\n{self.log()}"
            assert time.monotonic() < deadline, f"{what}\n{self.answer}\n{self.log()}"
            time.sleep(0.5)

    def press_ctrl_c(self) -> None:
        assert self.up is not None
        os.killpg(self.up.pid, signal.SIGINT)
        self.wait_for_up(None)

    def wait_for_up(self, code: int | None) -> None:
        assert self.up is not None
        ended = self.up.wait(timeout=SECONDS)
        assert code is None or ended == code, self.log()
        self.up = None

    def log(self) -> str:
        path = self.directory / "up.log"
        return path.read_text(encoding="utf-8")[-6000:] if path.exists() else ""

    def rows(self, query: str) -> list[str]:
        """Return the rows of the user's own Postgres, each as psql shows it; none before the table is there."""
        connection = psycopg2.connect(self.target_url)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(query)
                return [" | ".join(map(str, row)) for row in cursor.fetchall()]
        except psycopg2.errors.UndefinedTable:
            return []
        finally:
            connection.close()

    def has_rows(self, query: str, expected: list[str]) -> bool:
        return self.rows(query) == expected


@contextmanager
def users_database(database_url: str, page: str) -> Iterator[str]:
    """Make the account and the database as the page says, on the server of `database_url`; yield the address."""
    [statements] = [block["text"] for block in BLOCK.finditer(page) if block["kind"] == "sql superuser"]
    engine = sa.create_engine(database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        try:
            for statement in statements.splitlines():
                connection.exec_driver_sql(statement)
            shop = engine.url.set(drivername="postgresql", username="shop", password="secret", database="shop")
            yield shop.render_as_string(hide_password=False)
        finally:
            connection.exec_driver_sql("DROP DATABASE IF EXISTS shop WITH (FORCE)")
            connection.exec_driver_sql("DROP ROLE IF EXISTS shop")
    engine.dispose()


def typed_blocks(page: str) -> list[re.Match[str]]:
    """Return the page's blocks in order, without the superuser's, which `users_database` runs."""
    return [block for block in BLOCK.finditer(page) if block["kind"] != "sql superuser"]


def test_the_tutorial_step_by_step(database_url: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    with (
        held_port() as port,
        state_directory() as directory,
        users_database(database_url, page) as target_url,
    ):
        text = page.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
        reader = Reader(directory, target_url)
        assert reader.rows(LOGIN) == ["shop"], "the account that the page makes"
        query, expected = "", [""]
        try:
            for block in typed_blocks(text):
                kind, typed = block["kind"], block["text"]
                if kind == "sh":
                    _type_in(reader, typed, port)
                elif kind == "json answer":
                    assert json.loads(reader.answer) == json.loads(typed)
                elif kind == "text detail":
                    assert json.loads(reader.answer)["detail"] == typed.strip()
                elif kind.startswith("python "):
                    _save(reader, kind, typed, said=text[: block.start()].rpartition("## ")[2])
                elif kind == "text output":
                    assert reader.answer == typed
                elif kind == "sql answer":
                    query = typed
                elif kind == "text answer":
                    expected = typed.splitlines()
                    reader.until("the rows are there", partial(reader.has_rows, query, expected))
                else:
                    pytest.fail(f"a block of an unknown kind: {kind}")
            assert reader.up is None, "the last step stops it"
            assert reader.rows(query) == expected, "a replay replaces its batch's rows"
        finally:
            if reader.up is not None:
                os.killpg(reader.up.pid, signal.SIGINT)
                reader.up.wait(timeout=SECONDS)


def _type_in(reader: Reader, typed: str, port: int) -> None:
    if typed.startswith("curl"):
        reader.until("it listens", lambda: _listens(port))
    reader.type_in(typed)
    if "forebay new" in typed:
        _use_port(reader.directory / "my_shop.py", port)


def _save(reader: Reader, kind: str, typed: str, *, said: str) -> None:
    """Put the module in the place of the one before, or add to it while `up` runs."""
    module = reader.directory / "my_shop.py"
    if kind == "python file=my_shop.py":
        assert "Ctrl-C" in said, "the page says to stop it first"
        reader.press_ctrl_c()
        module.write_text(typed, encoding="utf-8")
        return
    assert kind == "python add=my_shop.py"
    module.write_text(f"{module.read_text(encoding='utf-8')}\n\n{typed}", encoding="utf-8")
    reader.until("it takes effect", lambda: "pieces_in_delta" in reader.log())


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _use_port(path: Path, port: int) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("127.0.0.1:8080") == 1
    path.write_text(text.replace("127.0.0.1:8080", f"127.0.0.1:{port}"), encoding="utf-8")
