"""Run docs/runbooks/upgrade.md in its order, on a driver log with the functions of another version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.pages.runbook import blocks, page_environment, run_commands, sections
from tests.support.pages.runbook_states import LEFT_BY, MODULE, make_healthy_log
from tracker_store.connection.engine import connect
from tracker_store.install import migrate
from tracker_store.receivers.agents import list_agents
from tracker_store.receivers.processes import register_process
from tracker_store.reports.checks import functions_are_the_files
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa

MAY_READ = "SELECT has_table_privilege('forebay_driver', 'forebay.batch_stats', 'SELECT')"


def test_the_page_brings_a_driver_log_to_this_version(engine: sa.Engine, database_url: str, tmp_path: Path) -> None:
    parts = sections("upgrade")
    see, (before, upgrade, give_roles, apply, leave, come_back), after = (
        "\n".join(blocks(parts["How to see it"], "sh")),
        blocks(parts["Cure"], "sh"),
        "\n".join(blocks(parts["How to know that it is cured"], "sh")),
    )
    environment = page_environment(database_url, tmp_path)

    def run(commands: str) -> str:
        return run_commands(commands, environment, tmp_path)

    def value(statement: str) -> object:
        with connect(engine) as connection:
            return connection.exec_driver_sql(statement).scalar_one()

    def revision() -> object:
        [statement] = blocks(parts["How to see it"], "sql")
        return value(statement)

    def is_draining() -> bool:
        with connect(engine) as connection:
            [agent] = list_agents(connection)
        return agent.draining

    (tmp_path / "declared.py").write_text(MODULE, encoding="utf-8")
    with connect(engine) as connection:
        make_healthy_log(connection)
    # As the version before is run by itself: everything works, and nothing blocks a migration.
    run(before)
    with connect(engine) as connection:
        for statement in blocks(parts["Cure"], "sql"):
            assert connection.exec_driver_sql(statement.replace("%", "%%")).all() == []
    with connect(engine) as connection:
        connection.exec_driver_sql("COMMENT ON SCHEMA forebay IS 'functions, views and rights: 0123'")
        connection.exec_driver_sql("DROP FUNCTION forebay.heartbeat")
    assert migrate.newest_revision() in run(see)
    assert revision() == migrate.newest_revision()
    run(upgrade)
    with connect(engine) as connection:
        assert functions_are_the_files(connection).passed
    assert value(MAY_READ)
    # As after an upgrade by a user that may not grant.
    with connect(engine) as connection:
        connection.exec_driver_sql("REVOKE SELECT ON forebay.batch_stats FROM forebay_driver")
    assert not value(MAY_READ)
    run(give_roles)
    assert value(MAY_READ)
    applied = f"SELECT count(*) FROM ({LEFT_BY['apply']}) AS applied"
    assert value(applied) == 0
    run(apply)
    assert value(applied) == 1
    with connect(engine) as connection:
        register_process(connection, kind=ProcessKind.AGENT, name="h1", host="h1", pid=100, slots=16)
    assert "h1" in run(leave)
    assert is_draining()
    run(come_back)
    assert not is_draining()
    assert migrate.newest_revision() in run(after)
