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
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from forebay.client.errors import RequestRefusedError
from tracker_store.long_texts import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

CHANNEL_NAME = re.compile(r"[A-Za-z0-9._~-]{1,120}")
_OFFSET = re.compile(r"[0-9]{1,19}")
_MOST_OFFSET = 2**63
# How a source may make records of a body, so that each line is one.
_LINE_BODIES = ("auto", "json_lines", "lines")
_MOST_ANSWER_BYTES = 2**16
_MOST_REASON = 500
_MOST_RETRY_SECONDS = 300.0
_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 30.0  # after which a connection is opened again: receivers and balancers end idle ones
_HTTP_FAULTS = (OSError, http.client.HTTPException, ValueError)


class NoAnswerError(Exception):
    """There is no whole answer: the request may have been taken or not.

    Args:
        why: in words.
        was_sent: whether there was a connection; else the request was not taken.
    """

    def __init__(self, why: str, *, was_sent: bool = False) -> None:
        super().__init__(why)
        self.was_sent = was_sent


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
        self._socket: socket.socket | None = None
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

    @property
    def path(self) -> str:
        """Return the URL's path, which names the stream."""
        return self._path

    def position(self) -> Answer:
        """Ask which offset the channel expects next.

        Raises:
            NoAnswerError: the receiver could not be reached, or gave no answer.
            RequestRefusedError: what answers knows no channels.
        """
        headers = {name: value for name, value in self._headers.items() if name != "Forebay-Channel"}
        answer, body = self._ask("GET", self._position_path, b"", headers)
        if answer.status != http.HTTPStatus.OK:
            return answer
        offset = body.get("offset")
        if type(offset) is not int or not 0 <= offset < _MOST_OFFSET:
            raise RequestRefusedError(
                f"{self._position_path} was answered without the channel's offset: give the URL of a stream of "
                "an Http source"
            )
        if (body_as := body.get("body", "auto")) not in _LINE_BODIES:
            raise RequestRefusedError(
                f"the source has body={body_as!r}, which does not make a record of each line: declare it with "
                '"auto", "json_lines" or "lines"'
            )
        return Answer(answer.status, offset)

    def send(self, body: bytes, *, offset: int, content_type: str) -> Answer:
        """Send records from an offset on. Raises NoAnswerError: they may be registered or not."""
        headers = {**self._headers, "Forebay-Offset": str(offset), "Content-Type": content_type}
        return self._ask("POST", self._path, body, headers)[0]

    def abort(self) -> None:
        """End the request that is in flight, and refuse others with NoAnswerError."""
        self._is_aborted = True
        if (sock := self._socket) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[Answer, dict[str, object]]:
        if self._is_aborted:
            raise NoAnswerError("the sender is being closed")
        deadline = time.monotonic() + self._timeout
        was_sent = False
        try:
            sock = self._connected()
            was_sent = True
            answered, is_over = _exchange(sock, self._head(method, path, body, headers), body, method, deadline)
            if is_over:
                self.close()
        except _HTTP_FAULTS as error:
            self.close()
            why = (
                f"no whole answer in {self._timeout:g} s"
                if isinstance(error, TimeoutError) and was_sent
                else str(error) or type(error).__name__
            )
            raise NoAnswerError(f"{self._address[0]}:{self._address[1]}: {why}", was_sent=was_sent) from error
        except BaseException:
            self.close()
            raise
        self._used_at = time.monotonic()
        return answered

    def _head(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        host = f"[{self._address[0]}]" if ":" in self._address[0] else self._address[0]
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{self._address[1]}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if method != "GET":
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _connected(self) -> socket.socket:
        if time.monotonic() - self._used_at > _IDLE_SECONDS:
            self.close()
        if self._socket is None:
            sock = socket.create_connection(self._address, min(self._timeout, _CONNECT_SECONDS))
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._is_secure:
                    tls = self._tls or ssl.create_default_context()
                    sock = tls.wrap_socket(sock, server_hostname=self._address[0])
            except BaseException:
                sock.close()
                raise
            self._socket = sock
        return self._socket


class _DeadlineReader(io.RawIOBase):
    """Read a socket until a deadline, however slowly the bytes come."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._sock.settimeout(_left(self._deadline))
        return self._sock.recv_into(buffer)

    def makefile(self, _: str) -> io.BufferedReader:
        """Be what `HTTPResponse` takes for a socket."""
        return io.BufferedReader(self)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _exchange(
    sock: socket.socket, head: bytes, body: bytes, method: str, deadline: float
) -> tuple[tuple[Answer, dict[str, object]], bool]:
    """Send a request and read its answer. Return the answer, and whether the connection is of no use any more."""
    sock.settimeout(_left(deadline))
    is_over = False
    try:
        # What comes whole in one piece is answered fastest.
        sock.sendall(head + body)
    except ConnectionError:
        # It may have been refused before its end, with an answer.
        is_over = True
    response = http.client.HTTPResponse(_DeadlineReader(sock, deadline), method=method)  # type: ignore[arg-type]
    with response:
        response.begin()
        content = response.read(_MOST_ANSWER_BYTES)
        if response.length and len(content) < _MOST_ANSWER_BYTES:
            raise http.client.IncompleteRead(content, response.length)
        return _answer_of(response, content), is_over or response.will_close or not response.isclosed()


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
