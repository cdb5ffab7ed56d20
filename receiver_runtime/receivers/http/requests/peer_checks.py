"""Refuse requests by the host that they ask for and by the web page that sends them: see ``request_peer``.

Where tokens are set, a page does not know one. Without tokens only the headers that browsers add show where a request
comes from. This module reads heads only.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.requests.refusals import refusal
from receiver_runtime.receivers.http.requests.route import Refused
from receiver_runtime.sources.fields.loopback import is_written_as_loopback
from receiver_runtime.sources.fields.request_peer import all_values, foreign_origin, not_one_host

if TYPE_CHECKING:
    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.pushed import Headers

_WITHOUT_HOST = "1.0"  # the version of HTTP in which Host was not defined yet


def missing_host(headers: Headers, http_version: str) -> Refused | None:
    """Return why a request without exactly one Host is refused, or None."""
    why = not_one_host(headers)
    if why is None or (http_version == _WITHOUT_HOST and not all_values(headers, b"host")):
        return None
    return Refused(HTTPStatus.BAD_REQUEST, why)


def check_origin(headers: Headers, source: Http) -> None:
    """Refuse what another site's page sends. For sources without tokens.

    A page's own site is the one that the request asks for; if the source listens on loopback, that must be a name of
    loopback.

    Raises:
        RefusedError: 403.
    """
    if not all_values(headers, b"origin"):
        return  # most senders are no browsers, and this is asked of each request
    on_loopback = is_written_as_loopback(source.listen_address[0])
    said = foreign_origin(headers, on_loopback=on_loopback, allowed=source.webhook_origins)
    if said is not None:
        raise refusal(
            HTTPStatus.FORBIDDEN,
            f"{said} is another site, and this stream has no tokens: set tokens, or name the site in webhook_origins",
        )
