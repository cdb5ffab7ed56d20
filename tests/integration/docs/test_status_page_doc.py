"""Test docs/how-to/status-page.md: its command runs against a server, its statements on a driver log."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from orchestration.declarations.settings import Settings
from orchestration.status_page.rendering import RELOAD_SECONDS
from orchestration.status_page.requests import PAGE_ROWS, WINDOW
from orchestration.status_page.routes import CHARTED
from orchestration.tracker.http.http import TrackerHttpServer, TrackerView
from orchestration.tracker.http.listen_address import ListenAddress
from tests.support.commands.run_program import run_program
from tests.support.driver_log.log import make_log
from tests.support.polling import eventually
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    import sqlalchemy as sa

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "status-page.md").read_text(encoding="utf-8")
_FENCE = re.compile(r"^```(\w+) runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def fences(language: str) -> list[str]:
    return [text for name, text in _FENCE.findall(PAGE) if name == language]


def test_the_command_runs(engine: sa.Engine, tmp_path: Path) -> None:
    [command] = fences("sh")
    address_file = tmp_path / Settings.model_fields["home"].default / "run" / "tracker.url"
    view = TrackerView("host:1", lambda: 1, dict)
    with TrackerHttpServer(engine, view, ListenAddress("127.0.0.1", 0), address_file=address_file):
        eventually(address_file.exists, "the file with the address")
        done = run_program(["sh", "-euc", command], env={"PATH": os.environ["PATH"]}, cwd=tmp_path)
    assert done.stdout == "<h1>Overview</h1>\n", done.stderr


def test_the_statements_run(engine: sa.Engine) -> None:
    [statements] = fences("sql")
    with connect(engine) as connection:
        make_log(connection)
        ran = [connection.exec_driver_sql(one).all() for one in statements.split(";") if one.strip()]
    assert [len(rows) for rows in ran] == [1, 0, 1, 1, 0]


def test_the_numbers_are_those_of_the_program() -> None:
    assert f"reloaded every {RELOAD_SECONDS} seconds" in PAGE
    assert f"newest {CHARTED} finished batches" in PAGE
    assert f"newest {WINDOW:,} are sorted" in PAGE
    assert f"at most {PAGE_ROWS} rows" in PAGE
