"""Define the route of OpenTelemetry's logs: ``POST /v1/logs``, and its answers. Loads the extra ``forebay[otlp]``."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from forebay_contrib.opentelemetry.answers import JSON, PROTOBUF, answer_type, exported, status
from forebay_contrib.opentelemetry.logs import parse_logs
from forebay_contrib.opentelemetry.schemas import SCHEMAS
from receiver_runtime.receivers.http.requests.pushed import Headers, Pushed, media_type
from receiver_runtime.receivers.http.requests.route import Described, Json, Reply, Route

if TYPE_CHECKING:
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
