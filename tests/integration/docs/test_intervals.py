"""Test the how-to on intervals: its statements run, and its settings have the defaults that it names."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from forebay.testing import Records, run_batch
from orchestration.declarations.pipeline_settings import PipelineSettings
from orchestration.declarations.settings import Settings
from tests.support.driver_log.log import make_log
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    import sqlalchemy as sa
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
HOW_TO = (ROOT / "docs" / "how-to" / "intervals.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", HOW_TO, re.MULTILINE | re.DOTALL)


def test_its_statements_run(engine: sa.Engine) -> None:
    statements = blocks("sql")
    assert len(statements) == 2
    with connect(engine) as connection:
        make_log(connection)
        for statement in statements:
            connection.exec_driver_sql(statement)


def test_its_declaration_is_valid() -> None:
    declaration, window, _ = blocks("python")
    pipeline = eval(declaration, {"Pipeline": Pipeline})
    assert pipeline.settings.concurrent_batches == 2
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    exec(window, {"pipeline": pipeline, "lines": lines, "ParquetSink": ParquetSink})
    assert pipeline.outputs["last_minute"].slide == timedelta(seconds=20)


@pytest.mark.spark
def test_its_join_has_each_pair_once(session: SparkSession) -> None:
    pipeline = Pipeline("p", interval="10s")
    clicks = Stream("clicks", SocketText(host="127.0.0.1", port=9998))
    views = Stream("views", SocketText(host="127.0.0.1", port=9999))
    join = blocks("python")[2].replace('"user"', '"value"')
    exec(join, {"pipeline": pipeline, "clicks": clicks, "views": views, "ParquetSink": ParquetSink})
    given: list[dict[Stream | str, Records]] = [
        {clicks: ["a"], views: ["b"]},
        {clicks: ["b"], views: ["a"]},
        {clicks: [], views: ["a"]},
    ]
    found = [
        run_batch(pipeline, records, earlier=given[:number], session=session)["pairs"].to_pylist()
        for number, records in enumerate(given)
    ]
    assert [sorted(pair["value"] for pair in pairs) for pairs in found] == [[], ["a", "b"], ["a"]]


def test_its_defaults_are_the_defaults() -> None:
    named = dict(re.findall(r"^\| `(\w+)` \| (`[^`]+`|\d+) \|", HOW_TO, re.MULTILINE))
    settings = PipelineSettings()
    pipeline = Pipeline("words", interval="2s")
    for name in ("catch_up", "max_attempts"):
        assert named.pop(name).strip('`"') == str(getattr(pipeline, name))
    assert {name: value.strip('`"') for name, value in named.items()} == {
        name: str(getattr(settings, name))
        for name in (
            *("concurrent_batches", "concurrent_outputs", "max_lost_attempts", "on_failure", "ui_retained_batches"),
            *("run_retention", "failed_run_retention"),
        )
    }
    assert Settings().history_retention.days == 14
