"""Declare an HTTP source: senders push records, which are acknowledged when they are safe.

Only the declaration and its checks; ``receiver_runtime.receivers.http.receiver`` listens.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, SerializeAsAny, Tag, field_validator, model_validator

from receiver_runtime.sources.fields.hmac_signature import HEADER_NAME, IN_HEADER, Hmac, check_header_place
from receiver_runtime.sources.fields.several import Secrets, Several  # noqa: TC001  pydantic reads them
from receiver_runtime.sources.fields.tcp import Listen, Tls, check_server_tls, parse_listen, parse_tls
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration
from receiver_runtime.sources.fields.verification import WEB_HOOKS, Verification
from receiver_runtime.sources.plugins import PluginError, load
from receiver_runtime.sources.source import Guarantee, Source, SourceRule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: A package registers its protocols of HTTP senders in this entry point group: ``NAME = "package.module:Class"``.
HTTP_PROTOCOLS = "forebay.http_protocols"
#: The path of a stream's plain bodies. A route may share it, if its ``matches`` knows its requests by their headers.
STREAM_PATH = "/v1/{stream}"

#: What stands before the JSON pointer of ``key_from``, or before the name of a form's field.
IN_BODY = "body:"
IN_FORM = "form:"

_POINTER = re.compile(r"(/([^~/]|~[01])*)+")
_ORIGIN = re.compile(r"[A-Za-z0-9._-]+(:\d{1,5})?")
# Headers that hold secrets: they must not become part of the stream.
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})

_HMAC = "hmac"


def _declared_check(value: object) -> object:
    """Return a sender of ``Hmac`` as the plain one that it is, and a stored declaration of another kind as declared."""
    if isinstance(value, Hmac) and type(value) is not Hmac:
        return Hmac.model_validate(dict(value))
    kind = value.get("kind", _HMAC) if isinstance(value, dict) else _HMAC
    if kind == _HMAC:
        return value
    try:
        found = load(WEB_HOOKS, kind, Verification) if isinstance(kind, str) else Hmac
    except PluginError as error:
        raise ValueError(f"kind: {error}") from error
    if issubclass(found, Hmac):
        said = f"kind: {kind!r} is no way to verify requests: give the sender's class, or leave kind out"
        raise ValueError(said)  # noqa: TRY004  pydantic takes it as the field's
    return found.model_validate(value)


def _is_hmac(value: object) -> str:
    return "other" if isinstance(value, Verification) and not isinstance(value, Hmac) else _HMAC


#: A package's own kind is stored and read back as itself, which is why there are two ways.
Verify = Annotated[
    Annotated[Hmac, Tag(_HMAC)] | Annotated[SerializeAsAny[Verification], Tag("other")],
    Discriminator(_is_hmac),
    BeforeValidator(_declared_check),
]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]
Size = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=256 * 2**20)]


class HttpServer(Source):
    """Declare what each kind that takes requests has: its address, who may send, and the limits of requests."""

    listen: Listen
    tokens: Secrets = ()
    tls: Annotated[Tls | None, BeforeValidator(parse_tls)] = None
    max_body_bytes: Size = 16 * 2**20
    max_body_values: Annotated[int, Field(ge=1)] = 2_000_000
    max_record_bytes: Size = 16 * 2**20
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = 5000
    max_connections_per_peer: Annotated[int | None, Field(ge=1)] = None
    max_waiting_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)] = 64 * 2**20
    head_timeout: Seconds = 10.0
    request_timeout: Seconds = 30.0
    parse_timeout: Seconds = 10.0
    idle_timeout: Seconds = 75.0
    acknowledgement_timeout: Seconds = 30.0

    @model_validator(mode="after")
    def _check_server(self) -> Self:
        check_server_tls(self.tls)
        if self.max_waiting_bytes < self.max_body_bytes:
            raise ValueError(
                f"max_waiting_bytes ({self.max_waiting_bytes}) has no room for one body of max_body_bytes "
                f"({self.max_body_bytes}): give more of it"
            )
        return self


class Http(HttpServer):
    """Takes records by ``POST /v1/STREAM``; one row per record, with the request's path, content type and time.

    **At least once, deduplicated**: a request is answered 200 when the block that holds its records is registered. A
    sender that got no answer sends again; with the same ``Idempotency-Key`` nothing is stored twice. With
    ``?ack=buffered`` the answer is 202 before anything is stored: **at most once**, for those requests.

    Args:
        listen: the address to listen on, as ``"0.0.0.0:8080"`` or ``"[::]:8080"``; port 0 takes any that is free.
        tokens: tokens, by reference (``EnvVar("NAME")``, ``"env:NAME"``, ``"file:/PATH"``): a request must bring one of
            them, as ``Authorization: Bearer TOKEN``, as ``X-API-Key: TOKEN``, or as the password of Basic. Each entry
            is one sender, whose keys are its own, and holds a token, or several, one per line. None by default: anyone
            may send, except web pages of other sites. Tokens are read at each start of the receiver.
        verify: how senders sign their requests, as ``Hmac(...)`` or a sender's name of ``forebay.web_hooks``, such as
            ``GitHub(EnvVar("SECRET"))``. A request that is not signed so is refused with 401. None by default.
        key_from: where a request's key is, in place of the header ``Idempotency-Key``: ``"header:X-GitHub-Delivery"``,
            or ``"body:/id"``, a JSON pointer to a string or a whole number of a body in JSON, or of each record of an
            array or of lines, or ``"form:MessageSid"``, a field of a form. A request or record that has none there is
            taken without a key.
        tls: a ``Tls`` with ``certificate_file`` and ``key_file``; no TLS by default.
        body: how a body becomes records: ``"json"`` is one value or an array of them, ``"json_lines"`` and ``"lines"``
            are one record per line, ``"whole"`` is one record. ``"auto"`` goes by the content type, and looks at the
            bytes where there is none, or one that many senders give to JSON (``text/plain``,
            ``application/x-www-form-urlencoded``): a document of JSON over several lines is one record there, or an
            array of them, and JSON lines are one record each. They are also taken as ``application/json``.
        headers: names of request headers that are kept with each record, in the column ``attributes``.
        query_parameters: names of query parameters that are kept with each record, likewise. Others are passed over.
        webhook_origins: the origins whose web hooks may send, if they ask first by OPTIONS as CloudEvents defines it:
            their names, or ``"*"`` for all. Without tokens, web pages of these origins may send too. None by default.
        protocols: what senders may speak beside plain bodies, by the names under which packages register protocols:
            ``"cloudevents"``, ``"elasticsearch"`` for ``POST /_bulk``, ``"splunk_hec"`` for ``/services/collector``,
            ``"loki"`` for ``/loki/api/v1/push``, ``"gelf"`` for ``/gelf``, ``"prometheus"`` for ``/api/v1/write``, and
            ``"opentelemetry"`` for ``POST /v1/logs``, which needs the extra ``forebay[otlp]``.
            By default those that need nothing else, which is ``"cloudevents"``.
        max_body_bytes: the largest body of a request, after decompression; a larger one is refused with 413.
        max_body_values: the most JSON values (names count too) in one document, line or element of an array, and the
            most elements, lines that are cut one by one, texts of a JSON sequence, or messages of protobuf in one body.
            An element or line with more becomes a dead letter; a body with more is refused with 413. They are counted
            before parsing.
        max_record_bytes: a longer record among several becomes a dead letter; a single one is refused with 413.
        max_connections: at most this many connections at once; the next one is refused with 503, and reported. It may
            still ask ``GET /health`` and ``GET /ready``.
        max_connections_per_peer: at most this many of them from one peer, which is a host, or an IPv6 network of 64
            bits; by default four fifths of ``max_connections``, so that no host can take all.
        max_waiting_bytes: at most this many bytes of requests wait for an answer; further requests are refused with
            429. A request whose head, repeated in each of its records, would take more is refused with 413.
        head_timeout: how long a request's head may take to arrive completely, and a TLS handshake may take.
        request_timeout: how long its body may take after that.
        parse_timeout: how long a whole body may wait to be parsed, and take to be parsed; then it is refused with 503.
        idle_timeout: how long a connection may stay open without a request, or with answers that the client does not
            read. Make it longer than the idle timeout of a load balancer in front.
        acknowledgement_timeout: how long a request waits for its block to be registered. Then it is answered 503, and
            so is every new one until the driver log answers again.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("body", "binary"),
        ("content_type", "string"),
        ("path", "string"),
        ("received_at", "timestamp[us, tz=UTC]"),
        ("id", "string"),
        ("attributes", "map<string, string>"),
    )
    record_column: ClassVar[str] = "body"
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE_DEDUPLICATED
    plugin_fields: ClassVar[Mapping[str, str]] = {"protocols": HTTP_PROTOCOLS}
    receiver_class: ClassVar[str] = "receiver_runtime.receivers.http.receiver:HttpReceiver"
    letter_judge: ClassVar[str] = "receiver_runtime.receivers.http.routes:judge_letters"

    kind: Literal["http"] = "http"
    verify: Verify | None = None
    key_from: str | None = None
    body: Literal["auto", "json", "json_lines", "lines", "whole"] = "auto"
    headers: Several = ()
    query_parameters: Several = ()
    webhook_origins: Several = ()
    protocols: Several | None = None

    @property
    def source_rule(self) -> SourceRule:
        """Return the rule of requests answered 202: they are never sent again.

        Each block whose requests are to be answered 200 has its own rule.
        """
        return SourceRule.NOT_SENT_AGAIN

    @property
    def plugins(self) -> Mapping[str, Sequence[str]]:
        """See ``Source``: also the protocols that go with the senders of ``verify``."""
        found = {HTTP_PROTOCOLS: (*(self.protocols or ()), *(() if self.verify is None else self.verify.protocols))}
        if self.verify is not None and not isinstance(self.verify, Hmac):
            found[WEB_HOOKS] = (self.verify.kind,)
        return found

    @property
    def address(self) -> str:
        """Return the URL where it listens."""
        return f"{'http' if self.tls is None else 'https'}://{self.listen}"

    def path_of(self, stream: str) -> str:
        """Return the path at which a stream of this name takes plain bodies."""
        return STREAM_PATH.replace("{stream}", stream)

    @property
    def listen_address(self) -> tuple[str, int]:
        """Return where it listens, as (host, port)."""
        return parse_listen(self.listen)

    @field_validator("key_from")
    @classmethod
    def _check_key_from(cls, place: str | None) -> str | None:
        if place is None or (place.startswith(IN_BODY) and _POINTER.fullmatch(place.removeprefix(IN_BODY))):
            return place
        if place.startswith(IN_FORM) and place != IN_FORM:
            return place
        if not place.startswith(IN_HEADER):
            raise ValueError(
                f"{place!r} is no place of a key: give one as 'header:X-GitHub-Delivery', 'body:/id' or 'form:id'"
            )
        return check_header_place(place)

    @field_validator("webhook_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no name of a sender: give one as 'events.example.com', or '*'")
        return origins

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: tuple[str, ...]) -> tuple[str, ...]:
        for name in headers:
            if not HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a header: give one as 'X-Request-Id'")
            if name.lower() in _SECRET_HEADERS:
                raise ValueError(f"{name!r} holds secrets, which every reader of the stream would see: leave it out")
        return tuple(name.lower() for name in headers)

    @field_validator("query_parameters")
    @classmethod
    def _check_parameters(cls, parameters: tuple[str, ...]) -> tuple[str, ...]:
        for name in parameters:
            if not name or name == "ack":
                raise ValueError(f"{name!r} can't be kept: name a parameter of the query other than ack")
        return parameters

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if twice := set(self.headers) & set(self.query_parameters):
            raise ValueError(f"{min(twice)!r} is among headers and query_parameters: keep one, both are attributes")
        return self
