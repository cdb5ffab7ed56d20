"""Test the completion of command lines in bash, by the script that `forebay --show-completion` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.commands.forked_command import programs
from tests.support.commands.run_program import run_program
from tests.support.driver_log.log import INTERVAL, NOON, make_log
from tests.support.polling import eventually
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa

_COMPLETE = """
    eval "$(_FOREBAY_COMPLETE=source_bash forebay)"
    COMP_WORDS=($1); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    $(complete -p forebay | sed 's/.*-F \\([^ ]*\\).*/\\1/') forebay
    echo "${COMPREPLY[@]}"
"""


def offered(line: str, *, home: Path, database_url: str) -> set[str]:
    """Return what bash offers for the last word of a command line."""
    done = run_program(
        ["bash", "--norc", "-c", _COMPLETE, "bash", line],
        env={**programs(), "FOREBAY_HOME": str(home), "FOREBAY_DATABASE_URL": database_url},
        check=True,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_names(engine: sa.Engine, database_url: str, tmp_path: Path) -> None:
    with connect(engine) as connection:
        make_log(connection, receivers=2).tracker.allocate_blocks_to_batch(NOON + INTERVAL)

    def offers(line: str, url: str = database_url) -> set[str]:
        return offered(line, home=tmp_path, database_url=url)

    assert offers("forebay re") == {"receivers", "readers"}, "`receiver` and `reference` are hidden"
    assert offers("forebay --version st") == {"state", "status", "stop", "start", "streams"}
    assert offers("forebay batches --st") == {"--state"}
    assert offers("forebay batches --state C") == {"COMPLETED"}
    # On a busy machine the answer may take longer than a shell waits.
    eventually(lambda: offers("forebay receivers pause li") == {"lines", "lines/1", "lines/2"}, "the receivers' names")
    eventually(lambda: offers("forebay batches show words 2") == {"20260101T120010Z"}, "the pipeline's batch")
    eventually(lambda: offers("forebay state resume w") == {"words"}, "the pipeline's name")
    assert offers("forebay streams remove l", url="postgresql://127.0.0.1:1/none") == set()
