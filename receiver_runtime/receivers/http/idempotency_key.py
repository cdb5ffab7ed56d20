"""Reads a request's idempotency key. This module reads the header's value only: it decides nothing about records."""

from __future__ import annotations

import re
from http import HTTPStatus

from receiver_runtime.receivers.http.refusals import refusal

_KEY = re.compile(r"[\x20-\x7e]{1,255}")


def key_of(given: str | None) -> str | None:
    """Return the request's key. It comes in quotes, as the header's draft says, or without, as most senders send it.

    Raises:
        RefusedError: 400, it is no key.
    """
    if given is None:
        return None
    key = given[1:-1] if len(given) > 1 and given[0] == given[-1] == '"' else given
    if not _KEY.fullmatch(key):
        raise refusal(
            HTTPStatus.BAD_REQUEST, f"Idempotency-Key: {given!r:.100} is no key: send 1 to 255 printable characters"
        )
    return key
