"""Check which Python `make` gives the environment, for how long, and that an existing environment stays as it is."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.commands.run_program import run_program

if TYPE_CHECKING:
    import subprocess

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Make what `make setup` asks of an environment: its Python, and the stamp of a finished set-up."""
    made = tmp_path / "environment"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "python").symlink_to(sys.executable)
    (made / ".set-up").touch()
    return made


def make(environment: Path, *arguments: str, target: str = "setup") -> subprocess.CompletedProcess[str]:
    # This suite may itself be run by `make test PYTHON=…`.
    outer = ("MAKE", "PYTHON", "VENV", "MINUTES")
    return run_program(
        ["make", "--no-print-directory", *arguments, target, f"VENV={environment}"],
        env={name: value for name, value in os.environ.items() if not name.startswith(outer)},
        cwd=ROOT,
    )


@pytest.mark.parametrize("arguments", [(), (f"PYTHON={sys.executable}",)])
def test_an_environment_is_kept_without_a_wish_and_for_its_own_python(
    environment: Path, arguments: tuple[str, ...]
) -> None:
    assert make(environment, "--question", *arguments).returncode == 0


def test_an_environment_is_made_again_for_another_python(environment: Path, tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 3 14 0 /opt/python\n", encoding="utf-8")
    other.chmod(0o755)
    assert make(environment, "--question", f"PYTHON={other}").returncode == 1


def test_a_python_that_can_not_be_used_is_named_and_no_other_is_taken(environment: Path, tmp_path: Path) -> None:
    done = make(environment, f"PYTHON={tmp_path}/none")
    assert done.returncode != 0
    assert f"Forebay needs Python 3.11 to 3.14; {tmp_path}/none is another or can't be run" in done.stderr


@pytest.mark.parametrize(("target", "minutes"), re.findall(r"^([a-z]+): .*MINUTES=(\d+)", MAKEFILE, re.MULTILINE))
def test_a_target_runs_for_the_minutes_that_it_promises_and_for_those_that_are_asked(
    environment: Path, target: str, minutes: str
) -> None:
    def command(*arguments: str) -> str:
        return make(environment, "--dry-run", *arguments, target=target).stdout

    assert re.search(rf"minutes[ =]{minutes}\b", command(), re.IGNORECASE)
    assert re.search(r"minutes[ =]7\b", command("MINUTES=7"), re.IGNORECASE)
