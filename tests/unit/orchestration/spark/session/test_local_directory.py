"""Check that Spark's temporary files are in the home, in a directory that is removed when its process is gone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestration.spark.session.local_directory import (
    LOCAL_DIRECTORY,
    PROCESS_DIRECTORY,
    SOCKET_DIRECTORY,
    local_directory_configuration,
)
from tests.support.machine.state_directory import state_directory

# Prints its directory, and lives until its standard input is closed.
PROCESS = """
import sys
from pathlib import Path
from orchestration.spark.session.local_directory import LOCAL_DIRECTORY, local_directory_configuration
print(local_directory_configuration(Path(sys.argv[1]))[LOCAL_DIRECTORY], flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)


def test_only_the_owner_can_enter_it(tmp_path: Path) -> None:
    made = local_directory_configuration(tmp_path / "spark" / "local")[LOCAL_DIRECTORY]
    assert made.startswith(f"{tmp_path}/spark/local/")
    for directory in (tmp_path / "spark" / "local", *(tmp_path / "spark" / "local").iterdir()):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_a_killed_process_s_directory_is_removed_and_a_living_one_s_is_kept(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        killed, living = (process.stdout.readline().strip() for process in started if process.stdout is not None)
        (tmp_path / killed / "shuffle").write_text("left")
        started[0].kill()
        started[0].wait(60)
        mine = local_directory_configuration(tmp_path)[LOCAL_DIRECTORY]
        assert {str(directory) for directory in tmp_path.iterdir()} == {living, mine}
        # This process's earlier directory is kept too.
        other = local_directory_configuration(tmp_path)[LOCAL_DIRECTORY]
        assert {str(directory) for directory in tmp_path.iterdir()} == {living, mine, other}
    finally:
        for process in started:
            process.kill()
            process.communicate(timeout=60)


@pytest.mark.parametrize("is_made_by_spark", [False, True])
def test_a_later_session_of_a_jvm_has_the_same_one_made_again_if_it_is_gone(
    tmp_path: Path, is_made_by_spark: bool
) -> None:
    first = local_directory_configuration(tmp_path / "first")
    made = Path(first[PROCESS_DIRECTORY])
    shutil.rmtree(tmp_path / "first")
    if is_made_by_spark:
        made.mkdir(parents=True, mode=0o755)
    for _ in range(2):
        assert local_directory_configuration(tmp_path / "second", str(made)) == first
        assert made.stat().st_mode & 0o777 == 0o700
        # It is locked again: another session of this home removes nothing of it.
        (made / "shuffle").touch()
        local_directory_configuration(tmp_path / "first")
        assert (made / "shuffle").exists()
    assert not (tmp_path / "second").exists()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("")
    parent = tmp_path / "local"
    parent.mkdir()
    (parent / "link").symlink_to(outside)
    local_directory_configuration(parent)
    assert (outside / "kept").exists()


def test_a_directory_that_the_environment_names_is_used_but_not_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/mnt/fast")
    with state_directory() as home:
        made = local_directory_configuration(home)
        assert made.keys() == {PROCESS_DIRECTORY, SOCKET_DIRECTORY}
        assert [str(directory) for directory in home.iterdir()] == [made[SOCKET_DIRECTORY]]


def test_a_path_with_a_comma_is_left_out_with_a_warning(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert LOCAL_DIRECTORY not in local_directory_configuration(tmp_path / "a,b")
    assert "comma" in logs[0]["event"]


def test_sockets_are_there_unless_their_paths_would_be_too_long(tmp_path: Path) -> None:
    assert SOCKET_DIRECTORY not in local_directory_configuration(tmp_path / ("d" * 60))
