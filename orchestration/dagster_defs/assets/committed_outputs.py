"""Report each committed output of a batch to Dagster as a materialization, as soon as readers see it.

So the assets below an output go on even where another output of the batch fails. The driver log holds what is
committed; Dagster's events only show it. An output is reported once per commit: if an earlier attempt committed it, its
run has reported it too, unless it ended in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
import structlog

from orchestration.dagster_defs.shared.partitions import partition_key
from orchestration.dagster_defs.shared.state_assets import state_materialization
from orchestration.dagster_defs.shared.stream_assets import stream_key
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from orchestration.batches.attempt_outputs import ChangedState, OutputResult
    from orchestration.declarations.pipeline import Output, Pipeline
    from orchestration.declarations.sink import Column, TableAddress

MILLISECONDS = 1000.0
# Most materializations of one run that are read: a replay may have one for each output of many batches.
_MOST_EVENTS = 10_000
# Dagster keeps the columns with each batch's event.
_MOST_COLUMNS = 200

Metadata = dict[str, dg.MetadataValue]

log = structlog.get_logger(__name__)


def address_metadata(address: TableAddress | None) -> Metadata:
    """Return a table's name and URI, as far as it has them, under Dagster's own names."""
    said = {} if address is None else {"dagster/table_name": address.name, "dagster/uri": address.uri}
    return {key: dg.MetadataValue.text(value) for key, value in said.items() if value is not None}


def result_metadata(result: OutputResult, batch_time: datetime) -> Metadata:
    """Return the metadata of one output of one batch."""
    values: Metadata = {
        "batch_time": dg.MetadataValue.text(batch_time.isoformat()),
        "attempt": dg.MetadataValue.int(result.attempt),
        "location": dg.MetadataValue.path(result.location),
    }
    if result.rows is not None:
        values["dagster/row_count"] = values["dagster/partition_row_count"] = dg.MetadataValue.int(result.rows)
    if 0 < len(result.columns) <= _MOST_COLUMNS:
        values["dagster/column_schema"] = dg.TableSchemaMetadataValue(_schema(result.columns))
    if result.refused:
        values["refused_rows"] = dg.MetadataValue.int(result.refused)
    if result.seconds is not None:
        values["output_duration_ms"] = dg.MetadataValue.float(result.seconds * MILLISECONDS)
    if result.state is not None:
        values |= state_metadata(result.state)
    if result.lost_blocks:
        values["lost_blocks"] = dg.MetadataValue.int(result.lost_blocks)
        values["lost_records"] = dg.MetadataValue.int(result.lost_records)
    return values


def state_metadata(state: ChangedState) -> Metadata:
    """Return the metadata of what a batch made of an output's state."""
    values: Metadata = {
        "state_changed_keys": dg.MetadataValue.int(state.changed),
        "state_deleted_keys": dg.MetadataValue.int(state.deleted),
        "state_bytes": dg.MetadataValue.int(state.bytes),
    }
    if state.keys is not None:
        values["state_keys"] = dg.MetadataValue.int(state.keys)
    if state.late is not None:
        values["state_late_records"] = dg.MetadataValue.int(state.late)
    if state.watermark is not None:
        values["state_watermark"] = dg.MetadataValue.text(state.watermark.isoformat())
    return values


def _schema(columns: Iterable[Column]) -> dg.TableSchema:
    return dg.TableSchema(
        columns=[
            dg.TableColumn(column.name, column.kind, constraints=dg.TableColumnConstraints(nullable=column.nullable))
            for column in columns
        ]
    )


def _lineage(columns: Sequence[Column], output: Output) -> Metadata:
    """Return from which columns of the streams' assets the columns are computed, of those of which that is known."""
    keys = {stream.name: stream_key(stream) for stream in output.streams}
    known = {
        column.name: [dg.TableColumnDep(keys[stream], source) for stream, source in column.sources]
        for column in columns
        if column.sources is not None
    }
    if not 0 < len(known) <= _MOST_COLUMNS:
        return {}
    return {"dagster/column_lineage": dg.MetadataValue.column_lineage(dg.TableColumnLineage(known))}


class CommittedOutputs:
    """Reports the outputs of a run's batches. What can't be reported at once is reported by `finish`."""

    def __init__(
        self,
        context: dg.OpExecutionContext | dg.AssetExecutionContext,
        pipeline: Pipeline,
        metadata: Callable[[datetime], Mapping[str, dg.MetadataValue]],
    ) -> None:
        """Take what is added to the metadata of each output of a batch."""
        self._context = context
        self._pipeline = pipeline
        self._metadata = metadata
        self._left: list[tuple[datetime, OutputResult]] = []

    def report(self, batch_time: datetime, result: OutputResult) -> None:
        """Report one output. Never raises: that Dagster's storage is unavailable is no failure of the output."""
        try:
            self._report(batch_time, result)
        except Exception as error:  # noqa: BLE001  a storage may raise anything
            log.warning("can't report an output to Dagster, trying again at the end", error=shortened(str(error), 500))
            self._left.append((batch_time, result))

    def finish(self) -> None:
        """Report what is left. Raises what Dagster's storage raises."""
        while self._left:
            self._report(*self._left[0])
            del self._left[0]

    def materialized(
        self, batch_time: datetime, results: Iterable[OutputResult], selected: AbstractSet[dg.AssetKey]
    ) -> Iterator[dg.MaterializeResult[None]]:
        """Return what a step yields for these outputs, so that steps below it go on; report those it can't yield.

        A batch makes all of its outputs, even if only some are selected; and its run belongs to no partition.
        """
        for result in results:
            key = self._pipeline.outputs[result.output].asset_key
            if key in selected and partition_key(self._pipeline, batch_time) is None:
                yield dg.MaterializeResult(asset_key=key, metadata=self._shown(batch_time, result))
                self._report_state(batch_time, result)
            else:
                self._report(batch_time, result)

    def _report(self, batch_time: datetime, result: OutputResult) -> None:
        key = self._pipeline.outputs[result.output].asset_key
        if result.committed_by is not None and self._is_reported(key, batch_time, result):
            return
        self._context.log_event(
            dg.AssetMaterialization(
                key,
                # The run belongs to no partition, because it is launched for a batch time.
                partition=partition_key(self._pipeline, batch_time),
                metadata=self._shown(batch_time, result),
            )
        )
        self._report_state(batch_time, result)

    def _report_state(self, batch_time: datetime, result: OutputResult) -> None:
        """Report how the output's state was changed, if it was. Never raises: nothing is below that asset."""
        event = state_materialization(self._pipeline.outputs[result.output], batch_time, result)
        if event is None:
            return
        try:
            self._context.log_event(event)
        except Exception as error:  # noqa: BLE001  a storage may raise anything
            log.warning("can't report a state to Dagster", error=shortened(str(error), 500))

    def _shown(self, batch_time: datetime, result: OutputResult) -> Metadata:
        made_by = self._pipeline.code_version if result.committed_by is None else None
        code = {} if made_by is None else {"code_version": dg.MetadataValue.text(made_by)}
        output = self._pipeline.outputs[result.output]
        table = {**address_metadata(output.sink.address()), **_lineage(result.columns, output)}
        return {**self._metadata(batch_time), **result_metadata(result, batch_time), **table, **code}

    def _is_reported(self, key: dg.AssetKey, batch_time: datetime, result: OutputResult) -> bool:
        """Return whether the run that committed the output has reported it."""
        if not result.committed_by:
            return False
        records = self._context.instance.get_records_for_run(
            result.committed_by, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION, limit=_MOST_EVENTS
        ).records
        for record in records:
            event = record.event_log_entry.dagster_event
            if event is None or event.asset_key != key:
                continue
            made = event.step_materialization_data.materialization
            time = made.metadata.get("batch_time")
            if time is not None and time.value == batch_time.isoformat():
                return True
        return False
