"""`forebay status` when the driver log can't be reached: why, what goes on meanwhile, and the way out."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def status(home: Path, *arguments: str, database_url: str | None = None) -> tuple[int, str, str]:
    """Exit code, standard output, and all that it says on one line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    # No line so long that a word is cut.
    environment |= {"FOREBAY_HOME": str(home), "COLUMNS": "1000"}
    if database_url is not None:
        environment["FOREBAY_DATABASE_URL"] = database_url
    done = subprocess.run(
        [sys.executable, "-m", "forebay.cli", "status", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, " ".join((done.stdout + done.stderr).split())


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    code, output, said = status(tmp_path, "--json", database_url="postgresql://nobody@127.0.0.1:1/none")
    assert code == 1
    assert "the driver log can't be reached" in said
    assert "Connection refused" in said
    assert "go on by themselves" in said
    assert "check FOREBAY_DATABASE_URL" in said
    assert output == "", "a reader of the JSON gets nothing that is none"


def test_an_embedded_server_that_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    code, _, said = status(tmp_path)
    assert code == 1
    assert "the Postgres of this home does not run; `forebay up` starts it" in said
    assert "postgres.log" in said


def test_a_home_that_never_had_one(tmp_path: Path) -> None:
    code, _, said = status(tmp_path)
    assert code == 1
    assert "No driver log: run `forebay up`" in said
