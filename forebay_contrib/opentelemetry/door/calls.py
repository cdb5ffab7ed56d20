"""Serve OTLP/gRPC: each call becomes a request to the application that answers HTTP, and its answer a status.

So a call has the checks, limits, acknowledgement and answers of HTTP. Its message is read when the application asks for
the body, and not before. Loads ``grpcio``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from forebay_contrib.opentelemetry.answers import PROTOBUF, message_of, status_details
from forebay_contrib.opentelemetry.door.exchange import ask, scope_of
from forebay_contrib.opentelemetry.signals import SIGNALS
from receiver_runtime.sources.fields.tcp import address_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Message

    from forebay_contrib.opentelemetry.signals import Signal
    from receiver_runtime.sources.fields.tcp import Tls

# As OTLP/gRPC has them. Of these, a sender sends again what is UNAVAILABLE, and RESOURCE_EXHAUSTED with a RetryInfo.
_CODES = {
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.REQUEST_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.INTERNAL_SERVER_ERROR: grpc.StatusCode.INTERNAL,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}
_DETAILS = "grpc-status-details-bin"
# Seconds that calls have to end when the receiver stops; their requests have been answered by then.
_GRACE = 1.0
# HTTP/2's own headers, which gRPC does not pass on, are none of a request's.
_HEADERS = [(b"host", b"localhost"), (b"content-type", PROTOBUF.encode()), (b"transfer-encoding", b"chunked")]
_KEPT = frozenset({"authorization", "x-api-key", "user-agent", "idempotency-key"})
_BUSY_RETRY_SECONDS = 1
# A larger message counts as being read until it is counted elsewhere: where it is parsed, or behind another receiver.
_SMALL_BYTES = 64 * 1024


@contextlib.asynccontextmanager
async def serving_calls(
    application: ASGIApp,
    address: tuple[str, int],
    *,
    tls: Tls | None,
    most_bytes: int,
    most_calls: int,
    most_reading: int,
    idle_seconds: float,
) -> AsyncIterator[int]:
    """Serve calls at an address, on the running loop; yield the port. Raises OSError.

    Args:
        application: answers requests of HTTP.
        address: the host and port; others of this user may share it.
        tls: the certificate and key, and whose certificates are accepted.
        most_bytes: of one message, also decompressed.
        most_calls: at once; further ones are refused, to be sent again.
        most_reading: of these, whose message is being read. It is in memory as a whole before the application counts
            it.
        idle_seconds: how long a connection may stay open without a call.
    """
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", most_bytes),
            ("grpc.max_concurrent_streams", min(most_calls, 1000)),
            ("grpc.max_connection_idle_ms", math.ceil(idle_seconds * 1000)),
        ]
    )
    server.add_generic_rpc_handlers((_Exports(application, most_calls, most_reading),))
    where = address_of(*address)
    try:
        port = server.add_insecure_port(where) if tls is None else server.add_secure_port(where, _credentials(tls))
    except RuntimeError as error:
        raise OSError(f"gRPC can't listen on {where}: {error}") from error
    await server.start()
    try:
        yield port
    finally:
        await server.stop(_GRACE)


class _Exports(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handle the methods of the three signals' services."""

    def __init__(self, application: ASGIApp, most_calls: int, most_reading: int) -> None:
        self._application = application
        self._most_calls = most_calls
        self._calls = 0
        self._most_reading = most_reading
        self._reading: set[_Message] = set()
        self._handlers = {
            signal.method: grpc.stream_unary_rpc_method_handler(self._handler(signal)) for signal in SIGNALS
        }

    def service(self, handler_call_details: Any) -> Any:  # noqa: ANN401  grpcio has no types
        """Return the handler of a method; None if there is no such method."""
        return self._handlers.get(handler_call_details.method)

    def _handler(self, signal: Signal) -> Any:  # noqa: ANN401  as above
        async def export(_: object, context: Any) -> bytes:  # noqa: ANN401  as above
            return await self._export(signal, context)

        return export

    async def _export(self, signal: Signal, context: Any) -> bytes:  # noqa: ANN401  as above
        if self._calls >= self._most_calls:
            detail = f"{self._calls} calls are not answered yet: send again in a moment"
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, detail, _BUSY_RETRY_SECONDS)
        if len(self._reading) >= self._most_reading:
            detail = f"the messages of {len(self._reading)} calls are being read: send again in a moment"
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, detail, _BUSY_RETRY_SECONDS)
        self._calls += 1
        message = _Message(context, self._reading)
        try:
            asked = await ask(self._application, scope_of("POST", signal.path, _headers(context)), message.receive)
        finally:
            self._reading.discard(message)
            self._calls -= 1
        if asked.status == HTTPStatus.OK:
            return asked.body
        kind = (asked.header(b"content-type") or b"").decode("latin-1")
        retry_after = asked.header(b"retry-after")
        code = _CODES.get(HTTPStatus(asked.status), grpc.StatusCode.INVALID_ARGUMENT)
        await _refuse(context, code, message_of(kind, asked.body), None if retry_after is None else int(retry_after))
        raise AssertionError("unreachable")


class _Message:
    """Hand out a call's message as the body of a request. It is in ``reading`` until it is counted elsewhere."""

    def __init__(self, context: Any, reading: set[_Message]) -> None:  # noqa: ANN401  as above
        self._context = context
        self._is_read = False
        self._reading = reading
        reading.add(self)

    async def receive(self) -> Message:
        """Return the whole message, then wait until the call ends; see ASGI's ``receive``."""
        if self._is_read:
            self._reading.discard(self)
            # A call that is cancelled ends here.
            await asyncio.Event().wait()
        self._is_read = True
        message = await self._context.read()
        data = b"" if message is grpc.aio.EOF else message
        if len(data) <= _SMALL_BYTES:
            self._reading.discard(self)
        return {"type": "http.request", "body": data, "more_body": False}


def _headers(context: Any) -> list[tuple[bytes, bytes]]:  # noqa: ANN401  as above
    given = [
        (name.encode(), value.encode() if isinstance(value, str) else value)
        for name, value in context.invocation_metadata() or ()
        if name in _KEPT
    ]
    return [*_HEADERS, *given]


async def _refuse(context: Any, code: grpc.StatusCode, detail: str, retry_after: int | None) -> None:  # noqa: ANN401
    details = status_details(code.value[0], detail, retry_after)
    await context.abort(code, detail, trailing_metadata=((_DETAILS, details),))


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    try:
        certificates = Path(tls.certificate_file or "").read_bytes()
        key = Path(tls.key_file or tls.certificate_file or "").read_bytes()
        authorities = None if tls.ca_file is None else Path(tls.ca_file).read_bytes()
        if tls.key_password is not None:
            plain = load_pem_private_key(key, tls.key_password.resolve().encode())
            key = plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    except ValueError as error:
        raise OSError(f"key_file {tls.key_file} can't be used: {error}") from error
    return grpc.ssl_server_credentials([(key, certificates)], authorities, authorities is not None)
