"""Check that the files of a home are its owner's, and that nothing above it is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from forebay.cli.services.child import SupervisorError
from forebay.cli.services.private_home import make_home_private, others_may_enter

if TYPE_CHECKING:
    from pathlib import Path

WRITES_A_FILE = """
import os, sys
from typer.testing import CliRunner
import forebay.cli.main as main
os.umask(0o022)
CliRunner().invoke(main.app, ["doctor", "--help"])
open(sys.argv[1], "w").close()
"""


def test_a_new_home_is_closed_and_the_directories_above_it_are_left_alone(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o755)
    make_home_private(above / "home")
    assert (above / "home").stat().st_mode & 0o777 == 0o700
    assert above.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", [0o755, 0o711, 0o770])
def test_an_open_home_is_closed(tmp_path: Path, mode: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)
    assert f"{mode:04o}" in str(others_may_enter(home))
    make_home_private(home)
    assert home.stat().st_mode & 0o777 == 0o700
    assert others_may_enter(home) is None


def test_a_directory_that_is_everybodys_is_left_open(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o1777)
    make_home_private(home)
    assert home.stat().st_mode & 0o1777 == 0o1777
    assert others_may_enter(home) is not None


@pytest.mark.parametrize("home", ["/proc/nope", "{here}/file", "{here}/file/home"])
def test_a_home_that_cannot_be_made_is_named_with_the_way_out_and_is_no_bug(home: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    named = tmp_path / home.format(here=tmp_path)
    with pytest.raises(SupervisorError, match="FOREBAY_HOME") as raised:
        make_home_private(named)
    assert str(raised.value).startswith(f"{named} can't be made or used: ")
    assert "bug" not in str(raised.value)


def test_a_home_of_another_account_is_reported(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives a directory to another account")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    os.chown(home, 65534, 65534)
    make_home_private(home)
    assert "belongs to uid 65534" in str(others_may_enter(home))


def test_what_a_command_and_its_children_write_is_readable_by_the_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "written"
    subprocess.run([sys.executable, "-c", WRITES_A_FILE, str(file)], check=True, timeout=120)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("command", ["new", "init"])
def test_a_new_projects_files_have_the_mask_of_the_shell(tmp_path: Path, command: str) -> None:
    program = [sys.executable, "-c", "import os; os.umask(0o022); import forebay.cli.main as main; main.app()"]
    subprocess.run([*program, command, "my-shop"], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "my-shop").stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "my-shop").iterdir()} == {0o644}
