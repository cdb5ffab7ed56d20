"""Test docs/how-to/sizing-spark.md: its commands run, its declaration works, its settings are the program's."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from orchestration.declarations.pipeline_settings import PipelineSettings
from tests.support.commands.forked_command import programs
from tests.support.commands.run_program import run_program
from tests.support.driver_log.log import make_log
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    import sqlalchemy as sa

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "sizing-spark.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)(?: runnable)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCKS if found == language]


def test_statements_and_commands_run(engine: sa.Engine, database_url: str, tmp_path: Path) -> None:
    with connect(engine) as connection:
        make_log(connection)
        for statement in blocks("sql"):
            connection.exec_driver_sql(statement)
    environment = {
        **os.environ,
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(tmp_path),
        **programs(),
    }
    for command in blocks("sh"):
        done = run_program(["sh", "-euc", command], env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (len(blocks("sql")), len(blocks("sh"))) == (1, 1)


def test_the_declaration_works() -> None:
    [declaration] = blocks("python")
    names: dict[str, object] = {}
    exec(compile(declaration, "sizing-spark.md", "exec"), names)
    assert getattr(names["pipeline"], "settings").dynamic_allocation_max_executors == 8  # noqa: B009


def test_every_setting_is_in_the_table_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(dynamic_allocation_\w+)` \| `([^`]+)` \|", PAGE, re.MULTILINE))
    fields = PipelineSettings.model_fields
    assert rows == {
        name: str(field.default) for name, field in fields.items() if name.startswith("dynamic_allocation_")
    }
