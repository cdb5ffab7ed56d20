"""Answer the requests for the status page: read what a page shows in one connection, and render it.

Owns the routes. It only reads the driver log, at most a page of each list, and decides nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from orchestration.status_page import addresses
from orchestration.status_page.addresses import DagsterPages
from orchestration.status_page.charts import charts, input_rate
from orchestration.status_page.overview import read_overview
from orchestration.status_page.problems import replayed_line, slowest_source
from orchestration.status_page.rendering import Renderer
from orchestration.status_page.requests import (
    PAGE_ROWS,
    WINDOW,
    FinishedAsked,
    OpenAsked,
    moment,
    page_number,
    position,
    whole,
)
from orchestration.status_page.shown import milliseconds
from orchestration.status_page.stream_columns import shown_columns
from tracker_store.batches.pipelines import unknown_pipeline, unknown_stream
from tracker_store.host.code_in_force import CodeState
from tracker_store.reports import status_page as store
from tracker_store.reports.listener_events import EventKind
from tracker_store.reports.state_status import output_states
from tracker_store.schema.states import ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from datetime import timedelta
    from typing import TypeVar

    import sqlalchemy as sa
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from tracker_store.reports.listener_events import ListenerEvent

    Row = TypeVar("Row")

# Batches in the charts.
CHARTED = 300
# Unfinished batches, attempts and outputs of a batch, and a pipeline's streams that are listed; a page says if there
# are more.
LISTED = 100
_OVERVIEW_EVENTS = 12
# Events that are looked at for a page of them, and the kinds that a batch without records has.
_LOOKED_AT = 1_000
_OF_BATCHES = frozenset({EventKind.BATCH_ALLOCATED, EventKind.BATCH_COMPLETED})
# The last page that an offset reaches; lists that may grow with history are paged by keys.
_LAST_PAGE = 10_000
_STATIC = Path(__file__).parent / "static"


class StatusPages:
    """Serve the status page of one tracker.

    Args:
        connect: opens a connection to the driver log; its errors are the server's to answer.
        tracker: the tracker's name.
        dagster_url: the address of Dagster's webserver for people, if there is one.
        code: returns what is known of the code of this installation.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[sa.Connection]],
        *,
        tracker: str,
        dagster_url: str | None,
        code: Callable[[], CodeState] = CodeState,
    ) -> None:
        self._code = code
        self._connect = connect
        self._renderer = Renderer(tracker, DagsterPages(dagster_url))

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        pipeline = f"{addresses.ROOT}/pipelines/{{pipeline}}"
        return [
            Route("/", self._home),
            Route(addresses.ROOT, self._overview),
            Route(pipeline, self._pipeline),
            Route(f"{pipeline}/batches/{{batch}}", self._batch),
            Route(f"{addresses.ROOT}/streams/{{stream}}", self._stream),
            Route(addresses.EVENTS, self._events),
            Mount(f"{addresses.ROOT}/static", StaticFiles(directory=_STATIC)),
        ]

    @staticmethod
    def is_for(path: str) -> bool:
        """Return whether a path is one of a page, for which also an error is a page."""
        return path == addresses.ROOT or path.startswith(f"{addresses.ROOT}/")

    def problem(self, title: str, detail: str, status_code: int) -> Response:
        """Return an error as a page."""
        return self._renderer.page("problem", status_code, title=title, detail=detail)

    @staticmethod
    async def _home(request: Request) -> Response:
        del request
        return RedirectResponse(addresses.ROOT)

    def _overview(self, request: Request) -> Response:
        numbers = {
            name: page_number(request.query_params, name, last=_LAST_PAGE)
            for name in ("pipelines", "streams", "agents")
        }

        def offset(name: str) -> int:
            return (numbers[name] - 1) * PAGE_ROWS

        # One row more tells whether there is a next page.
        limit = PAGE_ROWS + 1
        code = self._code()
        with self._connect() as connection:
            overview = read_overview(connection, code=code, offset=offset("pipelines"))
            streams = store.page_of_streams(connection, offset=offset("streams"), limit=limit)
            agents = store.page_of_agents(connection, offset=offset("agents"), limit=limit)
            events, _ = _events_with_records(connection, None, _OVERVIEW_EVENTS)

        def turned(name: str, by: int) -> str:
            return addresses.asked(addresses.ROOT, **{**numbers, name: numbers[name] + by})

        return self._renderer.page(
            "overview",
            overview=overview,
            pipelines=overview.pipelines[:PAGE_ROWS],
            input_rate=input_rate,
            streams=streams[:PAGE_ROWS],
            agents=agents[:PAGE_ROWS],
            events=events,
            turns={
                name: (turned(name, -1) if numbers[name] > 1 else None, turned(name, 1) if _more(rows) else None)
                for name, rows in (("pipelines", overview.pipelines), ("streams", streams), ("agents", agents))
            },
        )

    def _pipeline(self, request: Request) -> Response:
        wanted = FinishedAsked.of(request.query_params)
        opened = OpenAsked.of(request.query_params)
        with self._connect() as connection:
            pipeline = _found_pipeline(connection, request)
            pipeline_id = pipeline.pipeline_id
            charted = store.newest_finished(connection, pipeline_id, limit=CHARTED)
            finished = store.page_of_finished(
                connection,
                pipeline_id,
                before=wanted.before,
                window=WINDOW,
                states=wanted.states,
                sort=store.BatchSort(wanted.order, wanted.ascending),
                offset=(wanted.page - 1) * PAGE_ROWS,
                limit=PAGE_ROWS + 1,
            )
            unfinished = opened.sorted(store.unfinished(connection, pipeline_id, limit=LISTED))
            streams = store.streams_of_pipeline(connection, pipeline_id, limit=LISTED)
            states = output_states(connection, pipeline.pipeline)
        return self._renderer.page(
            "pipeline",
            pipeline=pipeline,
            streams=streams,
            states=states[:LISTED],
            replayed_line=replayed_line,
            slowest_source=slowest_source,
            charts=charts(charted, pipeline.batch_interval),
            charted=charted,
            charted_records=sum(batch.records for batch in charted),
            mean_rate=_mean_rate(charted, pipeline.batch_interval),
            last=charted[-1] if charted else None,
            running=[batch for batch in unfinished if batch.state == "RUNNING"],
            waiting=[batch for batch in unfinished if batch.state != "RUNNING"],
            open_links=_OpenLinks(addresses.pipeline(pipeline.pipeline), opened),
            finished=finished[:PAGE_ROWS],
            links=_FinishedLinks(addresses.pipeline(pipeline.pipeline), wanted, finished),
            wanted=wanted,
            window=WINDOW,
        )

    def _batch(self, request: Request) -> Response:
        first = moment(request.path_params["batch"])
        offsets = {
            name: (page_number(request.query_params, name, last=_LAST_PAGE) - 1) * PAGE_ROWS
            for name in ("blocks", "positions")
        }
        with self._connect() as connection:
            pipeline = _found_pipeline(connection, request)
            before = None if first is None else moment(str(milliseconds(first) + 1))
            batch = (
                None
                if first is None or before is None
                else store.page_batch(connection, pipeline.pipeline_id, first, before)
            )
            if batch is None:
                raise HTTPException(
                    404, f"{pipeline.pipeline!r} has no batch {request.path_params['batch']!r}: its history may be over"
                )
            key = (pipeline.pipeline_id, batch.batch_time)
            attempts = store.attempts_of_batch(connection, *key, limit=LISTED)
            outputs = store.outputs_of_batch(connection, *key, limit=LISTED)
            positions = store.positions_of_batch(connection, *key, offset=offsets["positions"], limit=PAGE_ROWS + 1)
            blocks = store.blocks_of_batch(connection, *key, offset=offsets["blocks"], limit=PAGE_ROWS + 1)
        path = addresses.batch(pipeline.pipeline, batch.batch_time)
        pages = {name: offset // PAGE_ROWS + 1 for name, offset in offsets.items()}

        def turned(name: str, by: int) -> str:
            return addresses.asked(path, **{**pages, name: pages[name] + by})

        return self._renderer.page(
            "batch",
            pipeline=pipeline,
            batch=batch,
            rate=input_rate(batch, pipeline.batch_interval),
            attempts=attempts,
            outputs=outputs,
            positions=positions[:PAGE_ROWS],
            blocks=blocks[:PAGE_ROWS],
            turns={
                name: (turned(name, -1) if pages[name] > 1 else None, turned(name, 1) if _more(rows) else None)
                for name, rows in (("blocks", blocks), ("positions", positions))
            },
        )

    def _stream(self, request: Request) -> Response:
        name = request.path_params["stream"]
        state = request.query_params.get("state")
        state = state if state in set(ReceiverState) else None
        after = whole(request.query_params.get("after")) or 0
        with self._connect() as connection:
            found = store.page_stream(connection, name)
            if found is None:
                raise HTTPException(404, str(unknown_stream(connection, name)))
            stream_id, stream = found
            columns = store.page_columns(connection, stream_id)
            receivers = store.page_of_receivers(
                connection, stream_id, state=state, after=min(after, 2**31 - 1), limit=PAGE_ROWS + 1
            )
        path = addresses.stream(name)
        return self._renderer.page(
            "stream",
            stream=stream,
            columns=shown_columns(columns),
            letters=columns,
            receivers=receivers[:PAGE_ROWS],
            state=state,
            states=[
                (each.value, getattr(stream, each.value.lower()), addresses.asked(path, state=each.value))
                for each in ReceiverState
            ],
            turns=(
                addresses.asked(path, state=state) if after else None,
                addresses.asked(path, state=state, after=receivers[PAGE_ROWS - 1].ordinal)
                if _more(receivers)
                else None,
            ),
        )

    def _events(self, request: Request) -> Response:
        before = position(request.query_params.get("before"))
        with self._connect() as connection:
            events, following = _events_with_records(connection, before, PAGE_ROWS)
        return self._renderer.page(
            "events",
            events=events,
            turns=(
                addresses.EVENTS if before is not None else None,
                addresses.asked(addresses.EVENTS, before=following) if following is not None else None,
            ),
        )


def _more(rows: Sequence[Row]) -> bool:
    return len(rows) > PAGE_ROWS


def _events_with_records(
    connection: sa.Connection, before: tuple[int, int] | None, limit: int
) -> tuple[list[ListenerEvent], str | None]:
    """Return the newest events without those of empty batches, and the position that older ones are before, if any.

    An idle pipeline completes an empty batch in each interval, which would push out what matters.
    """
    looked_at = store.page_of_events(connection, before=before, limit=_LOOKED_AT + 1)
    kept = [event for event in looked_at[:_LOOKED_AT] if not (event.kind in _OF_BATCHES and event.records == 0)]
    if len(kept) > limit:
        return kept[:limit], kept[limit - 1].event_id
    return kept, looked_at[_LOOKED_AT - 1].event_id if len(looked_at) > _LOOKED_AT else None


def _mean_rate(batches: Sequence[store.PageBatch], interval: timedelta) -> float | None:
    if not batches:
        return None
    seconds = sum((batch.batch_time - batch.oldest_time + interval).total_seconds() for batch in batches)
    return sum(batch.records for batch in batches) / seconds


def _found_pipeline(connection: sa.Connection, request: Request) -> store.PagePipeline:
    name = request.path_params["pipeline"]
    pipeline = store.page_pipeline(connection, name)
    if pipeline is None:
        raise HTTPException(404, str(unknown_pipeline(connection, name)))
    return pipeline


class _SortLinks:
    """Make the links of a table's headings; each table's subclass gives the address that sorts it."""

    def __init__(self, path: str, asked: OpenAsked | FinishedAsked) -> None:
        self._path = path
        self._sorted = asked

    def _sorted_link(self, order: str, direction: str | None) -> str:
        raise NotImplementedError

    def sorted_by(self, order: str) -> str:
        """Return the link of a column's heading: the largest first, and the other way round the second time."""
        again = order == self._sorted.order and not self._sorted.ascending
        return self._sorted_link(order, "up" if again else None)

    def direction(self, order: str) -> str:
        """Return how a column is sorted, in the words of `aria-sort`."""
        if order != self._sorted.order:
            return "none"
        return "ascending" if self._sorted.ascending else "descending"


class _OpenLinks(_SortLinks):
    """Make the links that sort the batches that run or wait. They leave the finished ones in order of time."""

    def _sorted_link(self, order: str, direction: str | None) -> str:
        return addresses.asked(self._path, open=order, open_direction=direction) + "#active"


class _FinishedLinks(_SortLinks):
    """Make the links that sort, filter and turn the pages of the finished batches."""

    def __init__(self, path: str, wanted: FinishedAsked, rows: Sequence[store.PageBatch]) -> None:
        super().__init__(path, wanted)
        self._wanted = wanted
        self._rows = rows

    def _link(self, **changed: str | int | None) -> str:
        wanted = self._wanted
        values: dict[str, str | int | None] = {
            "sort": None if wanted.order is store.BatchOrder.TIME else wanted.order.value,
            "direction": "up" if wanted.ascending else None,
            "state": wanted.state,
            "before": None if wanted.before is None else milliseconds(wanted.before),
            "page": None if wanted.page == 1 else wanted.page,
        }
        return addresses.asked(self._path, **{**values, **changed}) + "#finished"

    def _sorted_link(self, order: str, direction: str | None) -> str:
        return self._link(sort=order, direction=direction, page=None)

    def of_state(self, state: str | None) -> str:
        """Return the link to the batches of one state, or of all."""
        return self._link(state=state, page=None, before=None)

    @property
    def previous(self) -> str | None:
        """Return the link to the page before."""
        page = self._wanted.page
        return self._link(page=None if page == 2 else page - 1) if page > 1 else None  # noqa: PLR2004  the first is left out

    @property
    def following(self) -> str | None:
        """Return the link to the next page; past the window, in order of time, to the window of older batches."""
        wanted = self._wanted
        if len(self._rows) > PAGE_ROWS:
            return self._link(page=wanted.page + 1)
        newest_first = wanted.order is store.BatchOrder.TIME and not wanted.ascending
        if newest_first and wanted.page == WINDOW // PAGE_ROWS and len(self._rows) == PAGE_ROWS:
            return self._link(page=None, before=milliseconds(self._rows[-1].batch_time))
        return None

    @property
    def newest(self) -> str | None:
        """Return the link back to the newest batches, from a window of older ones."""
        return None if self._wanted.before is None else self._link(before=None, page=None)
