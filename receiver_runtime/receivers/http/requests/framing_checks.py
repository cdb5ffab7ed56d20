"""Check the framing of a request's body: how its head says where the body ends, and which framings are refused.

A sender, a proxy in front of the receiver and the parser must agree where a body ends, or one request's body passes
for another request. This module reads heads only: it never reads a body.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.requests.refusals import refusal

if TYPE_CHECKING:
    from receiver_runtime.receivers.http.requests.pushed import Headers

_MOST_DIGITS = 19


@dataclass(frozen=True, slots=True)
class BodyFraming:
    """Describe how a request announces its body.

    Args:
        length: of the body in bytes, 0 where there is none; None where the body comes in chunks.
        expects_continue: the sender waits for an answer to ``Expect`` before it sends the body.
    """

    length: int | None
    expects_continue: bool


def body_framing(headers: Headers) -> BodyFraming:
    """Return how the request announces its body. Refuses nothing."""
    length: int | None = None
    is_chunked = False
    expects_continue = False
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            # Python makes no number of thousands of digits. Such a length is beyond any limit, like one of 19.
            length = int(value[:_MOST_DIGITS])
        elif name == b"transfer-encoding":
            is_chunked = True
        elif name == b"expect":
            expects_continue = True
    if length is None and not is_chunked:
        length = 0
    return BodyFraming(length, expects_continue)


def check_framing(headers: Headers) -> None:
    """Refuse a head after which the parser and the receiver could disagree where the body ends.

    Raises:
        RefusedError: 501 for a Transfer-Encoding other than chunked alone, 400 for an Upgrade.
    """
    for name, value in headers:
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise refusal(
                HTTPStatus.NOT_IMPLEMENTED,
                f"Transfer-Encoding: {value.decode('latin-1')!r:.100} is not read here: send chunked alone, and "
                "compress by Content-Encoding",
                connection="close",
            )
        if name == b"upgrade":
            # ``connections`` removes the header from every request except pipelined ones.
            raise refusal(
                HTTPStatus.BAD_REQUEST,
                "Upgrade: no other protocol is spoken here: leave it out, or wait for each answer",
                connection="close",
            )
