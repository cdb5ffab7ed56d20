"""Define what another kind of request than plain bodies is: a protocol, registered under ``forebay.http_protocols``.

A protocol only says which requests are its own, what records they hold, and how their senders are answered (``Route``),
and what it answers to those who ask before they send (``Handshake``).
The server does everything else for every protocol: authorization, limits, acknowledgement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
