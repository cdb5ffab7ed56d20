"""Reads a request's idempotency key. This module reads the header's value only: it decides nothing about records."""

from __future__ import annotations

from http import HTTPStatus

from receiver_runtime.receivers.http.requests.refusals import refusal
from tracker_store.blocks.idempotency_key import WANTED, idempotency_key


def key_of(given: str | None) -> str | None:
    """Return the request's key; None: it has none.

    Raises:
        RefusedError: 400, it is no key.
    """
    if given is None:
        return None
    key = idempotency_key(given)
    if key is None:
        raise refusal(HTTPStatus.BAD_REQUEST, f"Idempotency-Key: {given!r:.100} is no key: send {WANTED}")
    return key
