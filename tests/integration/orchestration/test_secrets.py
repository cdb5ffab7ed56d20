"""Check that a sink's secret is a reference wherever it is stored or shown: driver log, Dagster, logs, errors."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from forebay import DeclarationError, EnvVar, Pipeline, PostgresSink, Secret, Stream
from forebay.dagster import build_definitions
from forebay.sources import SocketText
from orchestration.batches.batch_run import run_batch
from orchestration.declarations.apply import apply, difference
from orchestration.declarations.settings import Settings
from orchestration.declarations.sink import SinkError
from tests.integration.orchestration.frame_without_spark import SessionWithoutSpark, words
from tests.support.driver_log.all_rows import all_rows
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from pathlib import Path

LITERAL = "hunter2-hunter2"


def declared(sink: PostgresSink) -> Pipeline:
    pipeline = Pipeline("words", interval="1h")
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline.output(inputs=[lines], sink=sink, name="counts")(lambda _: words(("a", 1)))
    return pipeline


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"postgresql://me:{LITERAL}@127.0.0.1:1/nowhere", "no connection to the target"),
        (f"postgresql://me:{LITERAL}@127.0.0.1:no{LITERAL}/nowhere", "no connection to the target"),
        (f"postgresql://me:{LITERAL}%zz@127.0.0.1:1/nowhere", "the target"),
        (f"me:{LITERAL}@127.0.0.1/nowhere", "the target's URL is none of Postgres"),
    ],
)
@pytest.mark.filterwarnings("ignore::dagster._utils.warnings.PreviewWarning")
def test_a_batch_that_fails_at_its_target_never_shows_the_secret(
    engine: sa.Engine,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    url: str,
    said: str,
) -> None:
    monkeypatch.setenv("TARGET_URL", url)
    pipeline = declared(PostgresSink(EnvVar("TARGET_URL"), "counts"))
    session: Any = SessionWithoutSpark()
    with connect(engine) as connection:
        shown = str(difference(connection, [pipeline]))
        apply(connection, [pipeline])
        row = get_pipeline(connection, "words")
        time = row.last_batch_time + timedelta(hours=1)
        connection.execute(
            sa.text(
                "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks) "
                "VALUES (:p, :t, :t, 'ALLOCATED', 0, 0, 0)"
            ),
            {"p": row.pipeline_id, "t": time},
        )
        with pytest.raises(SinkError, match=said) as raised:
            run_batch(
                pipeline,
                batch_time=time,
                attempt=1,
                run_id="run1",
                settings=Settings(home=tmp_path, database_url=database_url),
                session=lambda: session,
            )
        kept = all_rows(connection)
    assert "env:TARGET_URL" in kept
    assert said in kept
    repository = build_definitions(pipeline).get_repository_def()
    graph = repository.asset_graph
    pages = " ".join(str((graph.get(key).metadata, graph.get(key).description)) for key in graph.get_all_asset_keys())
    captured = capfd.readouterr()
    chain = [raised.value, raised.value.__cause__, raised.value.__context__]
    for text in (shown, kept, pages, captured.out, captured.err, *map(repr, [*chain, pipeline.outputs["counts"].sink])):
        assert LITERAL not in text


def test_a_literal_secret_is_refused_where_it_is_declared_and_not_repeated() -> None:
    refused: list[dict[str, Any]] = [
        {"url": f"postgresql://me:{LITERAL}@db/x"},
        {"url": f"postgresql://me@db/x?password={LITERAL}"},
        {"url": f"host=db password={LITERAL}"},
        {"url": "postgresql://me@db/x", "password": LITERAL},
    ]
    for arguments in refused:
        with pytest.raises(DeclarationError, match=r'EnvVar\("NAME"\)') as raised:
            PostgresSink(table="counts", **arguments)
        assert LITERAL not in str(raised.value)
    sink = PostgresSink("postgresql://me@db/x", "counts", password=Secret("file:/run/secrets/target"))
    assert (sink.declaration()["url"], sink.declaration()["password"]) == (
        "postgresql://me@db/x",
        "file:/run/secrets/target",
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mode": "upsert"}, "mode='upsert' must be one of append, overwrite, merge"),
        ({"mode": "merge"}, r"mode='merge' needs the columns .*key=\[...\]"),
        ({"key": ["a"]}, "say mode='merge'"),
        ({"table": "a.b.c"}, "write TABLE or SCHEMA.TABLE"),
        ({"table": "pg_temp.a"}, "a schema of Postgres's own"),
        ({"table": "forebay_commits"}, "choose another name"),
        ({"url": "mysql://db/x"}, "mysql:// is none of Postgres"),
        ({"url": "postgresql://db:99999/x"}, "its port is none"),
        ({"url": "postgresql://db/x#y"}, "what follows '#'"),
    ],
)
def test_invalid_arguments_are_refused_where_they_are_declared(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        PostgresSink(**({"url": "env:TARGET_URL", "table": "counts"} | arguments))


@pytest.mark.parametrize("result", [None, [("a", 1)], 7])
def test_an_output_that_returns_no_frame_is_named_with_the_fix(
    engine: sa.Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: object
) -> None:
    from orchestration.batches.output_run import run_output  # noqa: PLC0415 - this test alone needs it
    from tests.integration.orchestration.target_database import attempt  # noqa: PLC0415 - as above

    class Nowhere(PostgresSink):
        def committed(self, _: object) -> None:
            return None

    compute: Any = lambda: result  # noqa: E731 - what the output returns
    output = declared(Nowhere(EnvVar("TARGET_URL"), "counts")).outputs["counts"]
    with pytest.raises(
        SinkError, match=r"output 'counts' of pipeline 'words' returned .*needs a Spark DataFrame.*return frame"
    ):
        run_output(engine, output, attempt(), compute, replaces=False)
