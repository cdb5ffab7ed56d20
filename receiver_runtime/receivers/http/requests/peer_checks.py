"""Check which host a request asks for, and which web page sends it.

A browser on the receiver's machine sends what any page tells it to. Where tokens are set, a page does not know one.
Without tokens only the headers that browsers add show where a request comes from. This module reads heads only.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.requests.refusals import refusal
from receiver_runtime.receivers.http.requests.route import Refused
from receiver_runtime.sources.fields.loopback import host_name, is_written_as_loopback

if TYPE_CHECKING:
    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.pushed import Headers

_WITHOUT_HOST = "1.0"  # the version of HTTP in which Host was not defined yet


def missing_host(headers: Headers, http_version: str) -> Refused | None:
    """Return why a request without exactly one Host is refused (RFC 9112, 3.2), or None."""
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts == 1 or (hosts == 0 and http_version == _WITHOUT_HOST):
        return None
    return Refused(HTTPStatus.BAD_REQUEST, f"Host: it came {hosts} times: send it once")


def check_origin(headers: Headers, source: Http) -> None:
    """Refuse what another site's page sends. For sources without tokens.

    A page's own site is the one that the request asks for. If the source listens on loopback, that must be a name of
    loopback: otherwise a page could have its own name resolve to this machine (DNS rebinding).

    Raises:
        RefusedError: 403.
    """
    if not any(name == b"origin" for name, _ in headers):
        # Most senders are no browsers.
        return
    hosts = [value.strip().lower() for name, value in headers if name == b"host"]
    if is_written_as_loopback(source.listen_address[0]):
        own = [host for host in hosts if is_written_as_loopback(host_name(host.decode("latin-1")))]
    else:
        own = hosts
    for name, value in headers:
        if name != b"origin":
            continue
        site = value.strip().lower().partition(b"://")[2]
        allowed = {origin.lower() for origin in source.webhook_origins}
        if site not in own and "*" not in allowed and site.decode("latin-1") not in allowed:
            raise refusal(
                HTTPStatus.FORBIDDEN,
                f"Origin: {value.decode('latin-1')!r:.200} is another site, and this stream has no tokens: set tokens, "
                "or name the site in webhook_origins",
            )
