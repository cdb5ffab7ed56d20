"""Test the completion of command lines: what a shell is offered, and that it waits for nothing that commands load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.cli import completion
from forebay.cli.reference import completion_table

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = Path(completion.__file__).with_name(completion.TABLE)


def test_the_table_is_that_of_the_commands() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8")) == json.loads(completion_table()), (
        "run: forebay reference completion > /tmp/completion.json && mv /tmp/completion.json forebay/cli"
    )


def offered(words: str, environment: Mapping[str, str] | None = None, *, program: str = "-mforebay.cli") -> list[str]:
    """Return what bash is offered for the last of these words."""
    done = subprocess.run(
        [sys.executable, *program.split(" ", 1)],
        env={name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        | {"_FOREBAY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        | dict(environment or {}),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ("forebay ", {"up", "status", "batches", "dead-letters"}),
        ("forebay st", {"status", "stop", "start", "streams"}),
        ("forebay receivers ", {"pause", "restart", "list"}),
        ("forebay batches --", {"--pipeline", "--state", "--json"}),
        ("forebay batches --state C", {"COMPLETED"}),
        ("forebay dead-letters list --reason inv", {"invalid_text", "invalid_encoding"}),
        ("forebay tap --no", {"--no-follow"}),
        ("forebay --v", {"--version", "--verbose"}),
    ],
)
def test_commands_options_and_their_words_are_offered(words: str, some: set[str]) -> None:
    found = offered(words)
    assert some <= set(found)
    assert all(word.startswith(words.rpartition(" ")[2]) for word in found)


@pytest.mark.parametrize(
    ("command", "parameter", "asked"),
    [
        ("agents drain", "name", "agents"),
        ("agents undrain", "name", "agents"),
        ("agents forget", "host", "lost_hosts"),
        ("readers remove", "name", "readers"),
        ("batches show", "batch_time", "batches"),
        ("batches discard", "batch_time", "batches"),
        ("batches replay", "output", "outputs"),
        ("batches bisect", "output", "outputs"),
    ],
)
def test_names_are_asked_of_the_driver_log(command: str, parameter: str, asked: str) -> None:
    entry = json.loads(FILE.read_text(encoding="utf-8"))
    for word in command.split():
        entry = entry["commands"][word]
    assert {one["name"]: one.get("names") for one in entry["parameters"]}[parameter] == asked


def test_hidden_commands_are_not_offered() -> None:
    assert not {"receiver", "tracker", "reference"} & set(offered("forebay "))


def test_without_a_driver_log_no_name_is_offered_and_nothing_is_said(tmp_path: Path) -> None:
    assert offered("forebay receivers pause ", {"FOREBAY_HOME": str(tmp_path)}) == []


def test_it_loads_no_command_and_no_database_library(tmp_path: Path) -> None:
    """Check this in place of its CPU time, which says nothing on a busy machine."""
    program = (
        "-c import atexit, sys; from forebay.cli.entry import main; atexit.register(lambda: "
        f"open({str(tmp_path / 'loaded')!r}, 'w').write(' '.join(sys.modules))); main()"
    )
    assert offered("forebay receivers pause ", {"FOREBAY_HOME": str(tmp_path)}, program=program) == []
    loaded = set((tmp_path / "loaded").read_text(encoding="utf-8").split())
    assert "forebay.cli.names" in loaded
    assert not {"sqlalchemy", "structlog", "rich", "pyarrow", "forebay.cli.main", "forebay.cli.receivers"} & loaded


def test_logs_are_offered_by_their_process(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("agent.log", "batch-driver-1.log", "agent.log.1"):
        (tmp_path / "logs" / name).touch()
    assert offered("forebay logs ", {"FOREBAY_HOME": str(tmp_path)}) == ["agent", "batch-driver-1"]
