"""Send records by PyPI's fluent-logger: sender.py SETTINGS. It asks for no acknowledgement."""

from __future__ import annotations

import json
import sys

from fluent.sender import EventTime, FluentSender  # type: ignore[import-not-found]

settings = json.loads(sys.argv[1])
sender = FluentSender("app", host="127.0.0.1", port=settings["port"], nanosecond_precision=True)
for number in range(settings["records"]):
    event_time = EventTime(1_700_000_000 + number / 10**9)
    if not sender.emit_with_time("log", event_time, {"n": number, "text": "ü"}):
        raise SystemExit(str(sender.last_error))
sender.close()
