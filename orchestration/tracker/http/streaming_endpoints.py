"""Serve the original's REST endpoints of a streaming application; ``streaming_api`` has the shapes.

Only reads. Each request runs in a thread of the server's pool, and may wait for the driver log.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from orchestration.tracker.http import streaming_api as api
from orchestration.tracker.http.streaming_progress import RETAINED_BATCHES
from tracker_store.batches.batch_outputs import newest_output_failures
from tracker_store.close_names import did_you_mean
from tracker_store.reports import streaming_statistics as store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import sqlalchemy as sa
    from starlette.requests import Request

    from orchestration.tracker.http.streaming_progress import StreamingProgress
    from tracker_store.reports.streaming_statistics import WatchedBatch, WatchedPipeline

#: Below it are the endpoints.
API = "/api/v1/applications"


class StreamingEndpoints:
    """Answer requests.

    Args:
        connect: opens a connection to the driver log.
        progress: of all pipelines, shared with the metrics.
    """

    def __init__(
        self, connect: Callable[[], AbstractContextManager[sa.Connection]], progress: StreamingProgress
    ) -> None:
        self._connect = connect
        self._progress = progress

    def routes(self) -> list[Route]:
        """Return the routes."""
        streaming = f"{API}/{{pipeline}}/streaming"
        return [
            Route(API, self._applications),
            Route(f"{API}/{{pipeline}}", self._application),
            Route(f"{streaming}/statistics", self._statistics),
            Route(f"{streaming}/receivers", self._receivers),
            Route(f"{streaming}/receivers/{{receiver}}", self._receiver),
            Route(f"{streaming}/batches", self._batches),
            Route(f"{streaming}/batches/{{batch}}", self._batch),
            Route(f"{streaming}/batches/{{batch}}/operations", self._operations),
            Route(f"{streaming}/batches/{{batch}}/operations/{{operation}}", self._operation),
        ]

    def _applications(self, request: Request) -> Response:
        del request
        now = datetime.now(UTC)
        with self._connect() as connection:
            return json_answer([api.application(pipeline, now) for pipeline in store.watched_pipelines(connection)])

    def _application(self, request: Request) -> Response:
        with self._connect() as connection:
            return json_answer(api.application(_pipeline(connection, request), datetime.now(UTC)))

    def _statistics(self, request: Request) -> Response:
        progress = self._progress.poll(self._connect)
        with self._connect() as connection:
            pipeline = _pipeline(connection, request)
            found = [each for each in progress.pipelines if each.pipeline.pipeline_id == pipeline.pipeline_id]
            if not found:
                raise HTTPException(503, f"pipeline {pipeline.name!r} was applied just now: ask again")
            retained = store.newest_batches(connection, pipeline.pipeline_id, limit=RETAINED_BATCHES)
            receivers = store.watched_receivers(connection, pipeline.stream_ids)
        return json_answer(api.statistics(found[0], retained, receivers))

    def _receivers(self, request: Request) -> Response:
        with self._connect() as connection:
            return json_answer(self._receiver_infos(connection, request, None))

    def _receiver(self, request: Request) -> Response:
        receiver_id = _number(request, "receiver")
        with self._connect() as connection:
            found = self._receiver_infos(connection, request, receiver_id)
        if not found:
            raise not_found(f"unknown receiver: {receiver_id}")
        return json_answer(found[0])

    def _receiver_infos(
        self, connection: sa.Connection, request: Request, receiver_id: int | None
    ) -> list[api.JsonObject]:
        pipeline = _pipeline(connection, request)
        receivers = [
            receiver
            for receiver in store.watched_receivers(connection, pipeline.stream_ids)
            if receiver_id in (None, receiver.receiver_id)
        ]
        retained = store.newest_batches(connection, pipeline.pipeline_id, limit=RETAINED_BATCHES)
        records: Mapping[tuple[datetime, int], int] = {}
        if retained and receivers:
            since, records = store.records_by_receiver(
                connection,
                pipeline.pipeline_id,
                receiver_ids=[receiver.receiver_id for receiver in receivers],
                first=retained[0].batch_time,
            )
            retained = [batch for batch in retained if batch.batch_time >= since]
        return [api.receiver_info(pipeline, receiver, retained, records) for receiver in receivers]

    def _batches(self, request: Request) -> Response:
        wanted = _statuses(request)
        with self._connect() as connection:
            pipeline = _pipeline(connection, request)
            found = [
                batch
                for batch in (
                    *store.newest_finished_batches(connection, pipeline.pipeline_id, limit=RETAINED_BATCHES),
                    *store.unfinished_batches(connection, pipeline.pipeline_id, limit=RETAINED_BATCHES),
                )
                if api.STATUS[batch.state] in wanted
            ]
            operations = _operations_of(connection, pipeline, found)
        newest_first = sorted(found, key=lambda batch: batch.batch_time, reverse=True)
        return json_answer([api.batch_info(pipeline, batch, operations[batch.batch_time]) for batch in newest_first])

    def _batch(self, request: Request) -> Response:
        pipeline, batch, operations = self._one_batch(request)
        return json_answer(api.batch_info(pipeline, batch, operations))

    def _operations(self, request: Request) -> Response:
        _, batch, operations = self._one_batch(request)
        return json_answer([api.operation_info(batch, operation) for operation in operations])

    def _operation(self, request: Request) -> Response:
        number = _number(request, "operation")
        _, batch, operations = self._one_batch(request)
        for operation in operations:
            if operation.operation_id == number:
                return json_answer(api.operation_info(batch, operation))
        raise not_found(f"unknown output operation: {number}")

    def _one_batch(self, request: Request) -> tuple[WatchedPipeline, WatchedBatch, list[api.OutputOperation]]:
        with self._connect() as connection:
            pipeline, batch = self._found_batch(connection, request)
            return pipeline, batch, _operations_of(connection, pipeline, [batch])[batch.batch_time]

    def pipeline_and_batch(self, request: Request) -> tuple[WatchedPipeline, WatchedBatch]:
        """Return what a request names. Raises HTTPException for what is not there."""
        with self._connect() as connection:
            return self._found_batch(connection, request)

    def _found_batch(self, connection: sa.Connection, request: Request) -> tuple[WatchedPipeline, WatchedBatch]:
        number = _number(request, "batch")
        pipeline = _pipeline(connection, request)
        try:
            first = api.EPOCH + timedelta(milliseconds=number)
            before = first + timedelta(milliseconds=1)
        except OverflowError:
            raise not_found(f"unknown batch: {number}") from None
        batch = store.batch_between(connection, pipeline.pipeline_id, first, before)
        if batch is None:
            raise not_found(f"unknown batch: {number}")
        return pipeline, batch


def json_answer(content: object, status_code: int = 200) -> Response:
    """Return an answer of JSON, for people too."""
    return Response(json.dumps(content, indent=2) + "\n", status_code, media_type="application/json")


def not_found(what: str) -> HTTPException:
    """Return what to raise for a thing that is not there."""
    return HTTPException(404, what)


def _pipeline(connection: sa.Connection, request: Request) -> WatchedPipeline:
    name = request.path_params["pipeline"]
    there = {pipeline.name: pipeline for pipeline in store.watched_pipelines(connection)}
    if name in there:
        return there[name]
    hint = did_you_mean(name, there) or f"see {API}"
    raise not_found(f"unknown app: there is no pipeline {name!r}; {hint}")


def _operations_of(
    connection: sa.Connection, pipeline: WatchedPipeline, found: Sequence[WatchedBatch]
) -> dict[datetime, list[api.OutputOperation]]:
    if not found:
        return {}
    times = [batch.batch_time for batch in found]
    commits: dict[datetime, list[store.OutputResult]] = {time: [] for time in times}
    for commit in store.output_commits(
        connection,
        pipeline.pipeline_id,
        outputs=api.output_names(pipeline),
        first=min(times),
        last=max(times),
    ):
        if commit.batch_time in commits:
            commits[commit.batch_time].append(commit)
    errors: dict[datetime, dict[str, str]] = {time: {} for time in times}
    for failure in newest_output_failures(connection, pipeline.pipeline_id, first=min(times), last=max(times)):
        if failure.batch_time in errors:
            errors[failure.batch_time][failure.output] = failure.error
    return {
        batch.batch_time: api.operations(pipeline, batch, commits[batch.batch_time], errors[batch.batch_time])
        for batch in found
    }


def _number(request: Request, name: str) -> int:
    value: str = request.path_params[name]
    # int() also accepts signs, spaces, underscores and digits of other scripts; these are refused.
    if not (value.isascii() and value.isdigit()) or len(value) > len(str(2**63 - 1)):
        raise not_found(f"unknown {name}: {value!r} is no number")
    number = int(value)
    if number >= 2**63:
        raise not_found(f"unknown {name}: {number}")
    return number


def _statuses(request: Request) -> frozenset[api.BatchStatus]:
    given = request.query_params.getlist("status")
    wanted = set()
    for value in given:
        try:
            wanted.add(api.BatchStatus(value.upper()))
        except ValueError:
            # The original also answers 404 to a parameter that it can't read.
            raise not_found(f"unknown status: {value!r}; use {', '.join(api.BatchStatus)}") from None
    return frozenset(wanted or api.BatchStatus)
