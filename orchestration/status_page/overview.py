"""Read what the overview shows in one connection, and make its picture and its small timelines.

Owns how much the overview reads. All figures are those of the read model of status that `forebay status` uses.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from orchestration.status_page.charts import SPARKED, Spark, pipeline_spark, stream_spark
from orchestration.status_page.flow import FlowRows, flow
from orchestration.status_page.flow_layout import Drawing, narrow, wide
from orchestration.status_page.problems import Problem, problems
from orchestration.status_page.requests import PAGE_ROWS
from orchestration.status_page.system_status import status_of
from tracker_store.batches.readers import list_readers
from tracker_store.reports.flow import flow_outputs, flow_streams, newest_by_stream
from tracker_store.reports.status_page import newest_finished_of_each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sqlalchemy as sa

    from tracker_store.host.code_in_force import CodeState
    from tracker_store.reports.flow import StreamBatch
    from tracker_store.reports.status import PipelineStatus
    from tracker_store.reports.status_page import PageBatch

# Ranges that are read for a pipeline's small timelines: one of many receivers has fewer batches there.
_MOST_RANGES = 2_000


@dataclass(frozen=True, slots=True)
class Overview:
    """Hold what the overview shows beside its lists of streams, agents and events."""

    problems: Sequence[Problem]
    pipelines: Sequence[PipelineStatus]
    newest: Mapping[int, Sequence[PageBatch]]
    drawings: Sequence[Drawing]
    said: str
    pipeline_sparks: Mapping[str, Spark | None]
    stream_sparks: Mapping[str, Spark | None]


def read_overview(connection: sa.Connection, *, code: CodeState, offset: int) -> Overview:
    """Read it, with the pipelines from `offset` on: one more than a page shows tells that there is a next page."""
    found = status_of(connection, code=code)
    receivers, lag, everything = found.receivers or [], found.lag or [], found.pipelines or []
    pipelines = everything[offset : offset + PAGE_ROWS + 1]
    shown = pipelines[:PAGE_ROWS]
    numbers = [row.pipeline_id for row in shown]
    of_stream = Counter(row.stream for row in receivers)
    readers = Counter[str]()
    for row in lag:
        readers[row.pipeline] += of_stream[row.stream]
    batches = {row.pipeline_id: max(1, min(SPARKED, _MOST_RANGES // max(1, readers[row.pipeline]))) for row in shown}
    newest = newest_finished_of_each(connection, numbers, limit=SPARKED)
    by_stream = newest_by_stream(connection, batches)
    picture = flow(
        FlowRows(
            now=datetime.now(UTC),
            streams=flow_streams(connection),
            receivers=receivers,
            pipelines=shown,
            lag=lag,
            readers=list_readers(connection),
            outputs=flow_outputs(connection, numbers),
            newest=newest,
            by_stream=by_stream,
        ),
        most=PAGE_ROWS,
    )
    return Overview(
        problems(found),
        pipelines,
        newest,
        [wide(picture), narrow(picture)] if picture.boxes else [],
        picture.said,
        {row.pipeline: pipeline_spark(newest.get(row.pipeline_id, ()), row.batch_interval) for row in shown},
        _stream_sparks(shown, newest, by_stream),
    )


def _stream_sparks(
    pipelines: Sequence[PipelineStatus], newest: Mapping[int, Sequence[PageBatch]], by_stream: Sequence[StreamBatch]
) -> dict[str, Spark | None]:
    """Return each stream's timeline, by the pipeline of the shortest interval that has had records of it."""
    records = {(row.pipeline_id, row.stream, row.batch_time): row.records for row in by_stream}
    first = {pipeline_id: at for pipeline_id, _, at in sorted(records, key=lambda key: key[2], reverse=True)}
    found: dict[str, Spark | None] = {}
    for row in sorted(pipelines, key=lambda row: row.batch_interval):
        number = row.pipeline_id
        for stream in sorted({stream for pipeline_id, stream, _ in records if pipeline_id == number}):
            rates = [
                records.get((number, stream, batch.batch_time), 0)
                / (batch.batch_time - batch.oldest_time + row.batch_interval).total_seconds()
                for batch in newest.get(number, ())
                if batch.batch_time >= first[number]
            ]
            if found.get(stream) is None:
                found[stream] = stream_spark(rates, row.pipeline)
    return found
