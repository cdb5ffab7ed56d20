"""Serve the requests of the tracker's HTTP API that change something: pause receivers, replay a batch, and so on.

Each calls what the command line calls, and decides nothing itself. A request needs the write token as
`Authorization: Bearer TOKEN`, whatever the address: without a configured one all are refused, because any account and
any web page of the machine could send them. It never takes a cookie, so no page that a browser shows can write.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from orchestration.dagster_instance.dagster_client import (
    CodeNotLoadedError,
    DagsterClient,
    DagsterError,
    DagsterUnansweredError,
)
from orchestration.replays.forward_choice import check_begin, output_to_replay
from orchestration.replays.replay_choice import ReplayChoice, ReplayError, batches_to_replay, check_output_names
from orchestration.replays.replay_run import (
    AGAIN_TAG,
    REQUEST_TAG,
    OtherReplayError,
    ReplayLaunch,
    ReplayRequest,
    replay_with_key,
    unfinished_replay,
)
from receiver_runtime.sources.fields.request_peer import all_values, foreign_origin, foreign_site, not_json, only_value
from tracker_store.blocks.idempotency_key import WANTED, idempotency_key
from tracker_store.receivers import receivers
from tracker_store.schema.declarations import PipelineDeclaration
from tracker_store.schema.states import DesiredState

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import sqlalchemy as sa
    from starlette.requests import Request
    from starlette.types import Scope

    from tracker_store.reports.streaming_statistics import WatchedBatch, WatchedPipeline

RECEIVERS = "/api/v1/streams/{stream}/receivers"
REPLAY = "/api/v1/applications/{pipeline}/streaming/batches/{batch}/replay"
_WANTED = {"pause": DesiredState.PAUSED, "stop": DesiredState.STOPPED, "start": DesiredState.RUNNING}
_MOST_BODY_BYTES = 65_536  # a body names outputs
# A launch takes seconds on a busy machine; a thread must not be held for longer.
_LAUNCH_SECONDS = 20.0
# How long a launch waits for Dagster's code server, which restarts when declarations change: longer than it takes.
_CODE_SECONDS = 30.0
# How long a replay waits for the launch of another one; and when its sender may come again, in seconds.
_WAIT_SECONDS = 10.0
_RETRY_SECONDS = 10

log = structlog.get_logger(__name__)

_WRITES_ARE_OFF = (
    "this tracker takes no requests that change something: set FOREBAY_TRACKER_WRITE_TOKEN, start the agent again, and "
    "send Authorization: Bearer TOKEN"
)


@dataclass(frozen=True, slots=True)
class ReplayDagster:
    """Name the Dagster that executes replays; `shown` is its URL without secrets."""

    url: str
    shown: str
    token: str | None = None

    def client(self) -> DagsterClient:
        """Return a client that waits for a launch."""
        return DagsterClient(self.url, token=self.token, timeout_seconds=_LAUNCH_SECONDS)


def has_write_token(scope: Scope, token: str | None) -> bool:
    """Return whether a request has the write token in its one Authorization header."""
    given = only_value(scope["headers"], b"authorization")
    return token is not None and given is not None and hmac.compare_digest(given, b"Bearer " + token.encode())


class Writes:
    """Serve the endpoints that change something.

    Args:
        connect: opens a connection to the driver log.
        find_batch: returns the pipeline and the batch that a request's path names, or raises HTTPException.
        token: the write token; None: all requests are refused.
        dagster: executes replays; None: they are refused.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[sa.Connection]],
        find_batch: Callable[[Request], tuple[WatchedPipeline, WatchedBatch]],
        *,
        token: str | None,
        dagster: ReplayDagster | None,
    ) -> None:
        self._connect = connect
        self._find_batch = find_batch
        self._token = token
        self._dagster = dagster
        # Of two requests for the same replay, the second one finds the run of the first.
        self._launching = asyncio.Lock()

    def routes(self) -> list[Route]:
        """Return the routes, all for POST."""
        verbs = [*_WANTED, "restart"]
        return [
            *(Route(f"{RECEIVERS}/{verb}", self._receivers, methods=["POST"]) for verb in verbs),
            *(Route(f"{RECEIVERS}/{{receiver}}/{verb}", self._receivers, methods=["POST"]) for verb in verbs),
            Route(REPLAY, self._replay, methods=["POST"]),
        ]

    def _check(self, request: Request) -> None:
        """Raise HTTPException unless a program with the token sends the request."""
        headers = request.scope["headers"]
        if (site := foreign_site(headers) or foreign_origin(headers)) is not None:
            raise HTTPException(HTTPStatus.FORBIDDEN, f"{site}: the page of another site may not send this")
        if self._token is None:
            raise HTTPException(HTTPStatus.FORBIDDEN, _WRITES_ARE_OFF)
        if not has_write_token(request.scope, self._token):
            message = "send Authorization: Bearer TOKEN with the token in FOREBAY_TRACKER_WRITE_TOKEN"
            raise HTTPException(HTTPStatus.UNAUTHORIZED, message, {"WWW-Authenticate": "Bearer"})
        if (why := not_json(headers)) is not None:
            raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, why)

    # -- receivers ---------------------------------------------------------------------------------------------------

    async def _receivers(self, request: Request) -> Response:
        self._check(request)
        _only(await _body(request))
        verb = request.url.path.rpartition("/")[2]
        name = request.path_params["stream"]
        if "receiver" in request.path_params:
            name = f"{name}/{request.path_params['receiver']}"
        try:
            found = await run_in_threadpool(self._change, name, verb)
        except receivers.NoSuchReceiverError as error:
            raise HTTPException(HTTPStatus.NOT_FOUND, str(error)) from error
        except receivers.ReceiverStoppedError as error:
            raise HTTPException(HTTPStatus.CONFLICT, str(error)) from error
        log.info("receivers changed over HTTP", verb=verb, receivers=name, client=_client(request))
        return _json({"receivers": found})

    def _change(self, name: str, verb: str) -> list[dict[str, object]]:
        with self._connect() as connection:
            found = receivers.receivers_named(connection, name)
            ids = [receiver.receiver_id for receiver in found]
            if verb == "restart":
                # A request that is sent again changes nothing: what it restarted waits or starts by then.
                receivers.restart_receivers(connection, receiver_ids=ids, why="restarted over HTTP", also_waiting=False)
            else:
                receivers.set_desired_state(connection, receiver_ids=ids, desired=_WANTED[verb])
            return [
                {
                    "receiver": f"{receiver.stream_name}/{receiver.ordinal}",
                    "state": receiver.state,
                    "desiredState": receiver.desired_state,
                }
                for receiver in receivers.receivers_named(connection, name)
            ]

    # -- replay ------------------------------------------------------------------------------------------------------

    async def _replay(self, request: Request) -> Response:
        self._check(request)
        body = _only(await _body(request), "outputs", "failedOutputsOnly", "forward")
        outputs, failed_only = body.get("outputs", []), body.get("failedOutputsOnly", False)
        if not (isinstance(outputs, list) and all(isinstance(name, str) for name in outputs)):
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"outputs: {outputs!r:.200} is no list of names")
        forward = body.get("forward", False)
        for name, value in (("failedOutputsOnly", failed_only), ("forward", forward)):
            if not isinstance(value, bool):
                raise HTTPException(HTTPStatus.BAD_REQUEST, f"{name}: {value!r:.200} is not true or false")
        if failed_only and forward:
            raise HTTPException(HTTPStatus.BAD_REQUEST, "forward replaces results: send it without failedOutputsOnly")
        key = _key_of(request)
        wanted = await run_in_threadpool(self._wanted, request, tuple(outputs), failed_only, forward)
        assert self._dagster is not None
        client = self._dagster.client()
        tags = {AGAIN_TAG: "once"} | ({} if key is None else {REQUEST_TAG: key})
        launch = ReplayLaunch(client, wanted, url=self._dagster.shown, tags=tags, code_seconds=_CODE_SECONDS)
        while True:
            try:
                await asyncio.wait_for(self._launching.acquire(), _WAIT_SECONDS)
            except TimeoutError as error:
                message = "Dagster is still launching another replay: nothing was done, send the request again"
                raise _unavailable(message) from error
            try:
                found = await run_in_threadpool(self._take_turn, launch, client, wanted, key)
            finally:
                self._launching.release()
            if found is not None:
                run_id, is_new = found
                break
            # Other replays are launched meanwhile.
            await asyncio.sleep(launch.pause)
        log.info(
            "replay requested over HTTP",
            pipeline=wanted.pipeline,
            batch_time=wanted.config()["from_time"],
            outputs=list(wanted.outputs),
            run_id=run_id,
            is_new=is_new,
            client=_client(request),
        )
        answer = {"runId": run_id, "run": f"{self._dagster.shown.rstrip('/')}/runs/{run_id}", "isNew": is_new}
        return _json(answer, HTTPStatus.ACCEPTED)

    def _wanted(self, request: Request, outputs: tuple[str, ...], failed_only: bool, forward: bool) -> ReplayRequest:
        pipeline, batch = self._find_batch(request)
        time = batch.batch_time
        declared = PipelineDeclaration.of(pipeline.declaration).outputs
        try:
            check_output_names(pipeline.name, declared=declared, outputs=outputs)
            if forward:
                outputs = (output_to_replay(pipeline.name, pipeline.declaration, outputs),)
        except ReplayError as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from error
        if self._dagster is None:
            message = (
                "this tracker knows no Dagster that could run it (FOREBAY_DAGSTER_URL); on a host with the code: "
                f"forebay batches replay {pipeline.name} {time:%Y-%m-%dT%H:%M:%SZ}"
            )
            raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, message)
        choice = ReplayChoice(time, time, failed_outputs_only=failed_only)
        try:
            with self._connect() as connection:
                if forward:
                    check_begin(connection, pipeline.name, pipeline.pipeline_id, outputs[0], time)
                    return ReplayRequest(pipeline.name, ReplayChoice(time), outputs, forward=True)
                batches_to_replay(connection, pipeline.pipeline_id, choice)
        except ReplayError as error:
            raise HTTPException(HTTPStatus.CONFLICT, str(error)) from error
        return ReplayRequest(pipeline.name, choice, outputs)

    @staticmethod
    def _take_turn(
        launch: ReplayLaunch, client: DagsterClient, wanted: ReplayRequest, key: str | None
    ) -> tuple[str, bool] | None:
        """Return the run that does it, and whether it was launched now: a request that is sent again finds it.

        With a key it finds a run that has ended, too. None: the launch waits for its next turn.
        """
        try:
            run_id = unfinished_replay(client, wanted) if key is None else replay_with_key(client, wanted, key)
            if run_id is not None:
                return run_id, False
            run_id = launch.turn()
        except OtherReplayError as error:
            raise HTTPException(HTTPStatus.CONFLICT, f"{OtherReplayError.__doc__} ({error})") from error
        except DagsterUnansweredError as error:
            way_out = "Look in Dagster before you send the request again: it finds a run that is not finished yet."
            if key is not None:
                way_out = "Send the request again with the same Idempotency-Key: if there is a run, it is found."
            message = f"{DagsterUnansweredError.__doc__} {way_out} ({error})"
            raise HTTPException(HTTPStatus.GATEWAY_TIMEOUT, message) from error
        except CodeNotLoadedError as error:
            message = f"{error}. Nothing was done: send the request again"
            raise _unavailable(message) from error
        except DagsterError as error:
            raise HTTPException(HTTPStatus.BAD_GATEWAY, f"{type(error).__doc__} ({error})") from error
        return None if run_id is None else (run_id, True)


def _unavailable(message: str) -> HTTPException:
    return HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, message, {"Retry-After": str(_RETRY_SECONDS)})


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body, empty if there is none. Raises HTTPException."""
    received = b""
    async for part in request.stream():
        received += part
        if len(received) > _MOST_BODY_BYTES:
            message = f"the body has more than {_MOST_BODY_BYTES:,} bytes"
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, {"Connection": "close"})
    if not received.strip():
        return {}
    try:
        found = json.loads(received)
    except (ValueError, RecursionError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error!s:.200}") from error
    if not isinstance(found, dict):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the body is no JSON object")
    return found


def _only(body: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the body. Raises HTTPException if it has other names than these: a mistyped one would be ignored."""
    unknown = sorted(body.keys() - set(names))
    if unknown:
        known = f"it may have {', '.join(names)}" if names else "it is empty here"
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body has {', '.join(unknown)!s:.200}: {known}")
    return body


def _key_of(request: Request) -> str | None:
    """Return the request's key, with its quotes, if it has any, taken off. Raises HTTPException: it is no key."""
    values = all_values(request.scope["headers"], b"idempotency-key")
    if not values:
        return None
    given = values[0].decode("latin-1")
    key = idempotency_key(given)
    if len(values) > 1 or key is None:
        message = f"Idempotency-Key: {given!r:.100} is no key: send one, of {WANTED}"
        raise HTTPException(HTTPStatus.BAD_REQUEST, message)
    return key


def _client(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _json(content: object, status_code: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(json.dumps(content, indent=2) + "\n", int(status_code), media_type="application/json")
