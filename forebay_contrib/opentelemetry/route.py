"""Define the routes of OpenTelemetry, as ``POST /v1/logs``, and their answers. Loads the extra ``forebay[otlp]``."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from forebay_contrib.opentelemetry.answers import JSON, PROTOBUF, answer_type, exported, status
from forebay_contrib.opentelemetry.logs import parse_logs
from forebay_contrib.opentelemetry.rows import parse_rows
from forebay_contrib.opentelemetry.schemas import SCHEMAS, schemas_of
from forebay_contrib.opentelemetry.signals import Level
from receiver_runtime.receivers.http.requests.pushed import Headers, Pushed, PushedRows, media_type
from receiver_runtime.receivers.http.requests.route import Described, Json, Reply, Route, with_retry

if TYPE_CHECKING:
    from forebay_contrib.opentelemetry.signals import Signal
    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.route import Answered, Refused

LOGS_PATH = "/v1/logs"


def _both(name: str) -> dict[str, Json]:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {JSON: schema, PROTOBUF: {"type": "string", "format": "binary"}}


_DESCRIBED = Described(
    _both("ExportLogsServiceRequest"),
    SCHEMAS,
    "exportLogs",
    "OTLP/HTTP: export logs of OpenTelemetry. The answer has the request's media type.",
    _both("ExportLogsServiceResponse"),
    _both("Status"),
)


def logs_route() -> Route:
    """Return the route of OTLP logs."""
    return Route(LOGS_PATH, _is_any, _parse, _DESCRIBED, _answer, _refuse)


def signal_route(signal: Signal) -> Route:
    """Return the route of a signal whose rows have its own columns."""
    request = signal.kinds[Level.REQUEST].DESCRIPTOR.name
    described = Described(
        _both(request),
        schemas_of(signal),
        f"export{signal.name.capitalize()}",
        f"OTLP/HTTP: export {signal.name} of OpenTelemetry. The answer has the request's media type.",
        _both(request.replace("Request", "Response")),
        _both("Status"),
    )
    return Route(
        signal.path, _is_any, partial(_parse_rows, signal), described, partial(_answer_signal, signal), _refuse
    )


def _parse_rows(signal: Signal, headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> PushedRows:
    return parse_rows(
        signal,
        headers,
        body,
        most_bytes=source.max_record_bytes,
        most_bytes_in_all=source.max_waiting_bytes,
        limits=limits,
    )


def _answer_signal(signal: Signal, headers: Headers, answered: Answered) -> Reply:
    kind = _type_of(headers)
    body = exported(kind, rejected=answered.rejected, message=answered.why, counted_as=signal.rejected)
    return Reply(HTTPStatus.OK, kind, body)


def refuse(headers: Headers, refused: Refused) -> Reply:
    """Return a refusal as OTLP has it."""
    return with_retry(_refuse(headers, refused), refused)


def _is_any(_: Headers) -> bool:
    return True


def _parse(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> Pushed:
    return parse_logs(
        headers,
        body,
        most_bytes=source.max_record_bytes,
        most_bytes_in_all=source.max_waiting_bytes,
        limits=limits,
    )


def _answer(headers: Headers, answered: Answered) -> Reply:
    kind = _type_of(headers)
    # Answer 200 or an error: in OTLP, 202 is no success.
    return Reply(HTTPStatus.OK, kind, exported(kind, rejected=answered.rejected, message=answered.why))


def _refuse(headers: Headers, refused: Refused) -> Reply:
    kind = _type_of(headers)
    return Reply(refused.status, kind, status(kind, refused.detail), refused.headers)


def _type_of(headers: Headers) -> str:
    """Return the answer's media type. Any headers will do: bad headers may be the reason of a refusal."""
    given = next((value.decode("latin-1") for name, value in headers if name == b"content-type"), None)
    return answer_type(media_type(given)[0])
