"""Check that each runbook has all its parts, and that each of its commands and statements is run by a test.

tests/support/pages/runbook_states.py makes the state that a page is about; where a procedure is tested, the page has
its own test.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestration.tracker.http import metrics
from tests.support.commands.run_program import run_program
from tests.support.driver_log.log import make_log
from tests.support.pages.runbook import HEADINGS, RUNBOOKS, blocks, commands_in, fences, inline_commands, page, sections
from tests.support.pages.runbook_states import STATES

if TYPE_CHECKING:
    import sqlalchemy as sa

    from forebay.testing.postgres import TestServer

TESTS = Path(__file__).parents[2]
DOCS = TESTS.parent / "docs"
PAGES = sorted(path.stem for path in RUNBOOKS.glob("*.md"))
#: Pages whose state is made of more than rows, each with the test that brings a system into it and runs the page there.
PROCEDURES = {
    "dead-letters": TESTS / "integration" / "docs" / "test_dead_letters_page.py",
    "postgres-failover": TESTS / "faults" / "test_postgres_away.py",
    "restore": TESTS / "integration" / "docs" / "test_restore_page.py",
    "upgrade": TESTS / "integration" / "docs" / "test_upgrade_page.py",
}
#: Commands that run until they are stopped, so no block of a page can run them, each with the rig that starts them.
LONG_RUNNING = {
    "agent": TESTS / "support" / "systems" / "receiving_host.py",
    "up": TESTS / "support" / "systems" / "running_system.py",
}
#: Commands that a page names as another way, with the page whose blocks run them.
OTHER_WAYS = {("stop-and-start", "agents drain"): "move-a-stream"}
#: Commands that a page says not to run.
FORBIDDEN = {("batch-failed", "stop"), ("receiver-killed", "blocks repair"), ("restore", "blocks repair")}
METRICS = metrics.METRICS.keys() | {"up"}
_COMMAND = re.compile(r"^ *(?:\$ )?(forebay .*)$", re.MULTILINE)
_STATEMENT = re.compile(r"^ *(?:SELECT|INSERT|UPDATE|DELETE|WITH|ALTER|CREATE|DROP|TRUNCATE)\b", re.MULTILINE)
#: Pages whose lines with a `$` tests/integration/cli/test_batches.py runs, or test_state_forward.py beside it.
TYPED = ("how-to/replay.md", "runbooks/batch-failed.md")


@pytest.mark.parametrize("stem", PAGES)
def test_a_page_has_every_part(stem: str) -> None:
    assert list(sections(stem)) == HEADINGS


@pytest.mark.parametrize("stem", PAGES)
def test_a_page_says_how_to_see_it_by_sql_page_alert_and_metric(stem: str) -> None:
    parts = sections(stem)
    seen = parts["Symptom"] + parts["How to see it"]
    words = " ".join(seen.split())
    assert blocks(parts["How to see it"], "sql")
    assert "[status page](../how-to/status-page.md)" in words
    assert re.search(r"`Forebay[A-Z]\w+`|[Nn]o alert\b", words)
    assert METRICS & set(re.findall(r"`(\w+)`", words)) or re.search(r"[Nn]o metric\b", words)
    named = set(re.findall(r"`((?:forebay|streaming)_[a-z]\w+)`", page(stem)))
    assert named - {"forebay_receiver", "forebay_driver", "forebay_reader"} <= METRICS


@pytest.mark.parametrize("stem", PAGES)
def test_every_command_and_statement_is_run_by_a_test(stem: str) -> None:
    typed = {command for name in TYPED for command in typed_commands((DOCS / name).read_text(encoding="utf-8"))}
    for language, words, text in fences(page(stem)):
        if language in ("sql", "sh"):
            assert words == " runnable", text
        else:
            assert not _STATEMENT.search(text), text
            untested = [command for command in _COMMAND.findall(text) if language != "console" or command not in typed]
            assert untested == []
    if stem in PROCEDURES:
        assert f'"{stem}"' in PROCEDURES[stem].read_text(encoding="utf-8")
    else:
        assert stem in STATES


@pytest.mark.parametrize("stem", PAGES)
def test_each_command_in_a_sentence_is_run_by_a_block_of_the_page(stem: str) -> None:
    left_out = {command for where, command in (*OTHER_WAYS, *FORBIDDEN) if where == stem}
    assert commands_without_block(page(stem)) - LONG_RUNNING.keys() == left_out


def commands_without_block(text: str) -> set[str]:
    """Return the words of the commands that the sentences of a page name and no block of it runs."""
    return inline_commands(text) - commands_in("\n".join([*blocks(text, "sh"), *typed_commands(text)]))


def test_the_commands_that_no_block_runs_are_run_elsewhere_or_forbidden() -> None:
    for command, rig in LONG_RUNNING.items():
        assert f'"-m", "forebay.cli", "{command}"' in rig.read_text(encoding="utf-8")
    for (_, command), other in OTHER_WAYS.items():
        assert command in commands_in("\n".join(blocks(page(other), "sh")))
    for stem, command in FORBIDDEN:
        assert re.search(rf"[Dd]o not run\W+`forebay {command}`", page(stem))


def test_every_service_that_a_page_names_is_a_unit_of_deploy() -> None:
    named = {name for stem in PAGES for name in re.findall(r"\bsystemctl [a-z-]+ ([\w.@-]+)", page(stem))}
    units = {path.stem for path in (TESTS.parent / "deploy" / "systemd").glob("*.service")}
    assert named
    assert {name.removesuffix(".service") for name in named} <= units


def typed_commands(text: str) -> set[str]:
    """Return the commands of a page's lines with a `$`."""
    return set(re.findall(r"^ *\$ (forebay .*)$", text, re.MULTILINE))


@pytest.mark.parametrize("page_name", TYPED)
def test_the_typed_commands_are_run_by_a_test(page_name: str) -> None:
    assert f'"{page_name}"' in (TESTS / "integration" / "cli" / "test_batches.py").read_text(encoding="utf-8")
    assert typed_commands((DOCS / page_name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("stem", PROCEDURES)
def test_the_statements_of_a_procedure_run_on_any_driver_log(connection: sa.Connection, stem: str) -> None:
    make_log(connection)
    for statement in blocks(page(stem), "sql"):
        connection.exec_driver_sql(statement.replace("%", "%%"))


def test_postgres_accepts_the_settings_that_prevent_a_loss(postgres_server: TestServer, tmp_path: Path) -> None:
    [settings] = [text for language, _, text in fences(page("postgres-failover")) if language == "ini"]
    (tmp_path / "postgresql.conf").write_text(settings, encoding="utf-8")
    tmp_path.chmod(0o700)
    for name, value in re.findall(r"^(\w+) = (.+)$", settings, re.MULTILINE):
        # Print a setting of the file, without a server; -C comes first, or root is refused. An invalid file fails.
        done = run_program([postgres_server.process.server.binaries / "postgres", "-C", name, "-D", tmp_path])
        assert (done.returncode, done.stdout.strip()) == (0, value.strip("'")), done.stderr


def test_a_command_in_a_sentence_that_no_block_runs_is_found() -> None:
    text = "Run `forebay batches\ndiscard words`, `forebay batches`.\n\n```sh runnable\nforebay batches list\n```\n"
    assert commands_without_block(text) == {"batches discard"}
    assert commands_without_block(text.replace("batches list", "batches discard words")) == {"batches"}
