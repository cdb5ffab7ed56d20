"""Test the how-to on outputs: its pipeline is declared, its outputs are written, its statements run on the target."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

import forebay
from orchestration.declarations.pipeline import Pipeline
from orchestration.declarations.sink import GROUP, Sink
from orchestration.sinks.parquet.parquet import ParquetSink
from receiver_runtime.sources.plugins import registered
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import TIME, Target, attempt

if TYPE_CHECKING:
    from forebay.testing.postgres import TestServer

DOCS = Path(__file__).parents[3] / "docs"
HOW_TO = (DOCS / "how-to" / "outputs.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "sinks.md").read_text(encoding="utf-8")
# Those that need no server; the page of another one is tried where its server is.
CONTRIBUTED = sorted(
    entry.module
    for entry in registered(GROUP).values()
    if entry.module.startswith("forebay_contrib.") and entry.module != "forebay_contrib.kafka.sink"
)


def blocks(language: str) -> list[str]:
    return [dedent(block) for block in re.findall(rf"^ *```{language}\n(.*?)^ *```$", HOW_TO, re.MULTILINE | re.DOTALL)]


def test_its_outputs_are_written_and_its_statements_run(
    postgres_server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    declaration = blocks("python")[0]
    names: dict[str, Any] = {}
    exec(compile(declaration.replace("/tmp/forebay-warehouse", f"{tmp_path}/warehouse"), "how-to", "exec"), names)
    pipeline = names["pipeline"]
    assert isinstance(pipeline, Pipeline)
    with postgres_server.database(migrated=False) as url:
        target = Target(url)
        monkeypatch.setenv("TARGET_URL", target.url)
        monkeypatch.setenv("CATALOG_URI", f"sqlite:///{tmp_path}/catalog.db")
        for name, output in pipeline.outputs.items():
            # Spark itself writes its files, in the tests of the first pipeline.
            if not isinstance(output.sink, ParquetSink):
                output.sink.write(words(("be", 2), ("or", 1)), attempt(output=name))
        commits, newest, last_seen, *_ = [target.rows(statement) for statement in blocks("sql")]
        exec(blocks("python")[4], names)
        replayed = attempt(2, output="history")
        names["counts"].write(words(("be", 2), ("or", 5)), replayed)
        assert target.rows("SELECT word, n FROM word_totals ORDER BY word") == [("be", 2), ("or", 5)]
    assert [row[:4] for row in commits] == [(row[0], TIME, 1, 2) for row in commits]
    assert {row[0] for row in commits} == {"history", "now", "last_seen"}
    assert sorted(newest) == [("be", 2), ("or", 1)]
    assert sorted(last_seen) == [("be", 2, TIME), ("or", 1, TIME)]


def test_files_are_declared_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, compacted, objects, reading, *_ = blocks("python")
    names: dict[str, Any] = {}
    for block in (compacted, objects):
        exec(compile(block, "how-to", "exec"), names)
    sink = names["files"]
    assert isinstance(sink, ParquetSink)
    sink.publish(sink.write(words(("be", 2), ("or", 1)), attempt()).location, batch_time=TIME)
    exec(compile(reading, "how-to", "exec"), names)
    assert sorted(names["words"]["word"].to_pylist()) == ["be", "or"]
    assert names["open_bucket"].declaration()["path"] == "s3://results/word_counts?region=eu-central-1"
    assert names["anywhere"].declaration()["path"] == "env:RESULTS_URL"


def test_the_reference_has_each_sink_with_its_guarantee_and_each_its_section_or_page() -> None:
    sinks = {
        name: found
        for name in dir(forebay)
        if isinstance(found := getattr(forebay, name), type) and issubclass(found, Sink)
    }
    rows = re.findall(r"^\| \[?`(\w+)`(?:\]\(([\w./]+)\))? \| ([\w ]+) \|", REFERENCE, re.MULTILINE)
    assert {name: guarantee for name, _, guarantee in rows}.items() >= {
        name: sink.guarantee.value for name, sink in sinks.items()
    }.items()
    for name, page, _ in rows:
        if name in sinks:
            text = (DOCS / "reference" / page).read_text(encoding="utf-8") if page else REFERENCE
            assert f"# `{name}(" in text


@pytest.mark.parametrize("module", CONTRIBUTED)
def test_a_contributed_sinks_page_declares_it(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS.parent.joinpath(*module.split(".")[:-1], "README.md")
    text = page.read_text(encoding="utf-8")
    monkeypatch.setenv("CATALOG_URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    [block] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(compile(block.replace("/tmp/forebay-warehouse", f"{tmp_path}/warehouse"), str(page), "exec"), names)
    written = names["sink"].write(words(("be", 2)), attempt())
    assert written.rows == 1
