"""Send numbered records through channels until each has its number: a program that a test kills and starts again.

``python -m`` this module, with one argument, a JSON object of what `send_all` takes. It goes on where each spool is,
and ends when all is registered.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.client import Sender, SenderLimits
from tests.support.polling import eventually

if TYPE_CHECKING:
    from forebay.client.sender import Fsync

#: A record's bytes: a channel's number of three digits, and the record's of eight.
RECORD = b'{"c":"%03d","n":"%08d"}'
RECORD_BYTES = len(RECORD % (0, 0))
_AT_ONCE = 2_000
#: The last tenth is sent only when a file of this name is beside the spools: a test kills before that.
GO_ON = "go_on"
_HELD_BACK = 10
_LIMITS = SenderLimits(spool_bytes=2**23, full_timeout=600.0, request_timeout=40.0)


def send_all(url: str, spools: str, channels: list[int], records: int, fsync: Fsync) -> None:
    """Send what each of the channels lacks of its records."""
    with ExitStack() as stack:
        senders = [
            (
                number,
                stack.enter_context(
                    Sender(
                        url,
                        channel=f"channel-{number}",
                        spool=Path(spools, f"{number}"),
                        fsync=fsync,
                        limits=_LIMITS,
                    )
                ),
            )
            for number in channels
        ]
        taken = {number: sender.status().taken for number, sender in senders}
        while min(taken.values()) < records:
            if min(taken.values()) >= records - records // _HELD_BACK:
                eventually(Path(spools, GO_ON).exists, "the end of the kills", seconds=600.0)
            for number, sender in senders:
                begin = taken[number]
                end = taken[number] = min(records, begin + _AT_ONCE)
                sender.send_many(RECORD % (number, one) for one in range(begin, end))
        for _, sender in senders:
            sender.flush()


if __name__ == "__main__":
    send_all(**json.loads(sys.argv[1]))
