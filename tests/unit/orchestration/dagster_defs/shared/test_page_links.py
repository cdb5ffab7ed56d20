"""Test that the assets of a pipeline link to its status page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay import ConsoleSink, Pipeline, Stream
from forebay.dagster import build_definitions
from forebay.sources import SocketText
from orchestration.dagster_defs.shared.batch_plots import batches_key
from orchestration.declarations.settings import Settings
from orchestration.tracker.http.status_address import pipeline_page

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@pytest.mark.parametrize(("http", "has_link"), [("127.0.0.1:3070", True), ("off", False)])
def test_each_asset_of_a_pipeline_links_to_its_page(
    monkeypatch: pytest.MonkeyPatch,
    http: str,
    has_link: bool,
) -> None:
    monkeypatch.setenv("FOREBAY_TRACKER_HTTP", http)
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="10s")

    @pipeline.output(inputs=[lines], sink=ConsoleSink())
    def counts(lines: DataFrame) -> DataFrame:
        return lines

    graph = build_definitions(pipeline).resolve_asset_graph()
    for key in (batches_key(pipeline), pipeline.outputs["counts"].asset_key):
        link = graph.get(key).metadata.get("status_page")
        assert (link is not None) == has_link, key
        if link is not None:
            assert link.value == pipeline_page(Settings(), "words") == "http://127.0.0.1:3070/status/pipelines/words"
