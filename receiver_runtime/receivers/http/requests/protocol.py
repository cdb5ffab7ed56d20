"""Define what another kind of request than plain bodies is, and what verifies requests.

A protocol is registered under ``forebay.http_protocols``, a way to verify requests under ``forebay.web_hooks``.

A protocol only says which requests are its own, what records they hold, and how their senders are answered (``Route``),
and what it answers to those who ask before they send (``Handshake``).
The server does everything else for every protocol: authorization, limits, acknowledgement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.route import Handshake, Route


class HttpProtocol(ABC):
    """One protocol of HTTP senders. It is made without arguments for each start of a receiver."""

    #: Whether sources take it that name no protocols. It must not need a package that may be missing.
    by_default: ClassVar[bool] = False

    @abstractmethod
    def routes(self) -> Sequence[Route]:
        """Return the kinds of its requests.

        Raises:
            SourceError: it needs a package that is not installed here (``missing_client``).
        """

    def handshakes(self) -> Mapping[Literal["GET", "POST"], Handshake]:
        """Return what answers questions at the stream's own path, by their method. A POST is checked as all are."""
        return {}

    def refusals(self, reason: str, letters: Sequence[bytes]) -> Mapping[int, str]:  # noqa: ARG002  of some protocols
        """Return why its parser refuses dead letters, by their places; see ``Source.refusals``.

        A letter may also be a record of a plain body.
        """
        return {}


class RequestCheck(ABC):
    """Verify the requests of a server. It is made of the declaration (``Verification``), once for each start.

    It and what it returns are called by any thread.
    """

    @abstractmethod
    def begin(self, headers: Headers, query: bytes) -> CheckedRequest:
        """Return what is left to check when the body is there.

        Raises:
            PushRefusedError: a header came twice.
            RefusedError: 401, the head alone shows that the request is not its sender's.
        """


class CheckedRequest(ABC):
    """Hold what is left to check of one request."""

    __slots__ = ()

    def work_before(self, body: bytes) -> Callable[[], None] | None:
        """Return what a thread has to do before ``check``, such as to fetch a certificate; None: nothing.

        It takes at most a few seconds, and raises as ``check`` does. A server does such work one by one.
        """
        del body
        return None

    @abstractmethod
    def check(self, body: bytes) -> None:
        """Check the body as it was received, before it is decompressed. It waits for nothing.

        Raises:
            RefusedError: 401, the request is not its sender's; 503, there is still something to do before.
        """
