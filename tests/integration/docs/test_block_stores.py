"""Test docs/how-to/block-stores.md: its commands run, its settings and defaults are those of the program."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from receiver_runtime.block_store.object_urls import S3_OPTIONS
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from tests.support.commands.forked_command import programs
from tests.support.commands.run_program import run_program

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "block-stores.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```sh runnable\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(engine: object, database_url: str, tmp_path: Path, command: str) -> None:
    environment = {
        **os.environ,
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(tmp_path),
        **programs(),
    }
    done = run_program(["sh", "-euc", command], env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_kind_of_command_is_there() -> None:
    assert len(COMMANDS) == 3


def test_settings_and_defaults_are_the_program_s() -> None:
    table = dict(re.findall(r"^\| `(\w+)` \| `?([\w ]+?)`? \| (?:`spark[\w.]+`)? ?\|$", PAGE, re.MULTILINE))
    assert len(table) == 6
    defaults = ReceiverSettings()
    assert ReceiverSettings(**table) == defaults


def test_the_options_of_an_s3_url_are_the_program_s() -> None:
    named = {
        name for row in re.findall(r"^\| (`[\w`, ]+`) \|.*$", PAGE, re.MULTILINE) for name in re.findall(r"\w+", row)
    }
    assert set(S3_OPTIONS) <= named
