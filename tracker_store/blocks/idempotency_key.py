"""Read an HTTP request's Idempotency-Key by its grammar, for receivers and for the tracker's API alike. Pure.

It never decides what is a repetition: that is up to those who keep the keys.
"""

from __future__ import annotations

import re

#: What a refusal says that a key is.
WANTED = "1 to 255 printable characters"
_KEY = re.compile(r"[\x20-\x7e]{1,255}")


def is_key(text: str) -> bool:
    """Return whether a text as it is, with quotes if it has some, is a key."""
    return _KEY.fullmatch(text) is not None


def idempotency_key(given: str) -> str | None:
    """Return the key in a header's value; None: it is no key.

    It comes in quotes, as the header's draft says (draft-ietf-httpapi-idempotency-key-header), or without, as most
    senders send it.
    """
    key = given[1:-1] if len(given) > 1 and given[0] == given[-1] == '"' else given
    return key if is_key(key) else None
