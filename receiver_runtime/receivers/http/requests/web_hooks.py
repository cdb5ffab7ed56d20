"""Answer a web hook that asks whether it may send (CloudEvents' web hooks 1.0, section 4). Reads headers alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.requests.pushed import header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.http.requests.pushed import Headers

#: Characters that no attribute of CloudEvents may contain: control characters and halves of surrogate pairs.
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def permission(headers: Headers, origins: Sequence[str]) -> dict[str, str] | None:
    """Return the headers that answer a web hook's validation request (OPTIONS), or None if its origin is not allowed.

    ``"*"`` among ``origins`` allows every origin. The allowed rate is unlimited: too many requests are answered 429.
    """
    origin = header(headers, b"webhook-request-origin")
    if not origin or not ("*" in origins or origin.lower() in {allowed.lower() for allowed in origins}):
        return None
    if FORBIDDEN.search(origin) or not origin.isascii():
        return None
    return {"WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": "*"}
