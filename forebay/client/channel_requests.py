"""Send a channel's requests over one connection, and read the answers.

Knows the protocol's headers and limits in time and size. It never decides what an answer means for the records, and
never sends a request again.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import re
import socket
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from forebay.client.errors import RequestRefusedError
from tracker_store.long_texts import one_line

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

CHANNEL_NAME = re.compile(r"[A-Za-z0-9._~-]{1,120}")
_OFFSET = re.compile(r"[0-9]{1,19}")
_MOST_OFFSET = 2**63
_MOST_ANSWER_BYTES = 2**16
_MOST_REASON = 500
_MOST_RETRY_SECONDS = 300.0
_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 30.0  # after which a connection is opened again: receivers and balancers end idle ones
_HTTP_FAULTS = (OSError, http.client.HTTPException, ValueError)


class NoAnswerError(Exception):
    """There is no whole answer: the request may have been taken or not."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold an answer.

    Args:
        status: of HTTP.
        offset: of the next record that the channel expects; None: the answer does not say it.
        retry_after: seconds to wait before a request is sent again; None: the answer does not say it.
        reason: what it says of a refusal.
        duplicates: how many of the request's records were registered before.
        dead_letters: how many were kept as dead letters.
    """

    status: int
    offset: int | None = None
    retry_after: float | None = None
    reason: str = ""
    duplicates: int = 0
    dead_letters: int = 0


class ChannelRequests:
    """Hold the connection to a receiver. One thread sends; any may call `abort`.

    Args:
        url: of the stream, as `http://host:8080/v1/orders`.
        channel: its name.
        token: sent as `Authorization: Bearer`; None: none is sent, or the URL's user and password.
        timeout: seconds in which a request must be answered as a whole.
        tls: for `https`; None: certificates are checked as the system does.
    """

    def __init__(
        self, url: str, channel: str, *, token: str | None, timeout: float, tls: ssl.SSLContext | None = None
    ) -> None:
        if not CHANNEL_NAME.fullmatch(channel):
            raise ValueError(f"channel {channel!r}: give 1 to 120 of the characters A-Z a-z 0-9 . _ ~ -")
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"url {url!r}: give the stream's, as http://host:8080/v1/STREAM")
        self._is_secure = parts.scheme == "https"
        self._address = (parts.hostname, parts.port or (443 if self._is_secure else 80))
        self._path = parts.path.rstrip("/") or "/"
        self._timeout = timeout
        self._tls = tls
        self._connection: http.client.HTTPConnection | None = None
        self._is_aborted = False
        self._used_at = 0.0
        self._headers = {"Forebay-Channel": channel, "User-Agent": "forebay-sender"}
        self._position_path = f"{self._path.rstrip('/')}/channels/{channel}"
        if token is not None:
            if not token.isascii() or not token.isprintable():
                raise ValueError("token: it has characters that no header takes")
            self._headers["Authorization"] = f"Bearer {token}"
        elif parts.username is not None:
            known = f"{parts.username}:{parts.password or ''}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(known).decode()}"

    def position(self) -> Answer:
        """Ask which offset the channel expects next.

        Raises:
            NoAnswerError: the receiver could not be reached, or gave no answer.
            RequestRefusedError: what answers knows no channels.
        """
        headers = {name: value for name, value in self._headers.items() if name != "Forebay-Channel"}
        answer, body = self._ask("GET", self._position_path, None, headers)
        if answer.status != http.HTTPStatus.OK:
            return answer
        offset = body.get("offset")
        if type(offset) is not int or not 0 <= offset < _MOST_OFFSET:
            raise RequestRefusedError(
                f"{self._position_path} was answered without the channel's offset: give the URL of a stream of "
                "an Http source"
            )
        return Answer(answer.status, offset)

    def send(self, body: bytes, *, offset: int, content_type: str) -> Answer:
        """Send records from an offset on. Raises NoAnswerError: they may be registered or not."""
        headers = {**self._headers, "Forebay-Offset": str(offset), "Content-Type": content_type}
        return self._ask("POST", self._path, body, headers)[0]

    def abort(self) -> None:
        """End the request that is in flight, and refuse others with NoAnswerError."""
        self._is_aborted = True
        if (connection := self._connection) is not None and (sock := connection.sock) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[Answer, dict[str, object]]:
        if self._is_aborted:
            raise NoAnswerError("the sender is being closed")
        deadline = time.monotonic() + self._timeout
        try:
            connection = self._connected(deadline)
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read(_MOST_ANSWER_BYTES)
            answered = _answer_of(response, content)
            if response.will_close or not response.isclosed():
                self.close()
        except _HTTP_FAULTS as error:
            self.close()
            raise NoAnswerError(
                f"{self._address[0]}:{self._address[1]}: {str(error) or type(error).__name__}"
            ) from error
        except BaseException:
            self.close()
            raise
        return answered

    def _connected(self, deadline: float) -> http.client.HTTPConnection:
        if time.monotonic() - self._used_at > _IDLE_SECONDS:
            self.close()
        self._used_at = time.monotonic()
        connection = self._connection
        if connection is None:
            timeout = min(self._timeout, _CONNECT_SECONDS)
            connection = (
                http.client.HTTPSConnection(*self._address, timeout=timeout, context=self._tls)
                if self._is_secure
                else http.client.HTTPConnection(*self._address, timeout=timeout)
            )
            self._connection = connection
            connection.connect()
        self._bound(connection, deadline)
        return connection

    @staticmethod
    def _bound(connection: http.client.HTTPConnection, deadline: float) -> None:
        """Limit the time of a request and its answer as a whole."""
        connection.sock.settimeout(max(0.001, deadline - time.monotonic()))
        connection.response_class = _reader(deadline)  # type: ignore[assignment]


class _DeadlineReader(io.RawIOBase):
    """Read a socket until a deadline, however slowly the bytes come."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not come in time")
        self._sock.settimeout(left)
        return self._sock.recv_into(buffer)

    def makefile(self, _: str) -> io.BufferedReader:
        """Be what `HTTPResponse` takes for a socket."""
        return io.BufferedReader(self)


def _reader(deadline: float) -> object:
    def response(sock: socket.socket, **named: object) -> http.client.HTTPResponse:
        return http.client.HTTPResponse(_DeadlineReader(sock, deadline), **named)  # type: ignore[arg-type]

    return response


def _answer_of(response: http.client.HTTPResponse, content: bytes) -> tuple[Answer, dict[str, object]]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    known: dict[str, object] = body if isinstance(body, dict) else {}
    offset = response.getheader("Forebay-Offset", "")
    said = known.get("detail") or known.get("reason") or content.decode("utf-8", "replace")
    return (
        Answer(
            response.status,
            int(offset) if _OFFSET.fullmatch(offset) and int(offset) < _MOST_OFFSET else None,
            _seconds(response.getheader("Retry-After")),
            one_line(str(said), _MOST_REASON),
            _count(known.get("duplicates")),
            _count(known.get("dead_letters")),
        ),
        known,
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < _MOST_OFFSET else 0


def _seconds(retry_after: str | None) -> float | None:
    """Return how long a `Retry-After` asks to wait, at most five minutes."""
    if retry_after is None:
        return None
    try:
        seconds = (
            float(retry_after)
            if retry_after.isascii() and retry_after.isdecimal()
            else parsedate_to_datetime(retry_after).timestamp() - time.time()
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), _MOST_RETRY_SECONDS)
