"""A process that sends one line per interval to each of many connections; a line is the time at which it was sent.

Run as ``python -m benchmarks.small_blocks_sender CONNECTIONS INTERVAL_SECONDS``: it prints its port, accepts this many
connections, and sends from the first byte of standard input until the next one or its end. Then it prints how many
lines it sent. Connections are spread evenly over the interval, as unrelated sources are.
"""

from __future__ import annotations

import select
import socket
import sys
import time

_LOOK_SECONDS = 0.002


def main() -> None:
    """Send the lines, then print how many."""
    wanted, interval = int(sys.argv[1]), float(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", 0), backlog=wanted)
    print(listener.getsockname()[1], flush=True)  # noqa: T201  how the benchmark learns it
    connections = [listener.accept()[0] for _ in range(wanted)]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The benchmark sends a byte when all receivers are ready, and another one at the end.
    sys.stdin.buffer.read(1)
    began = time.monotonic()
    sent = 0
    while not select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]:
        due = int((time.monotonic() - began) / interval * wanted)
        while sent < due:
            connections[sent % wanted].send(b"%d\n" % time.time_ns())
            sent += 1
    print(sent, flush=True)  # noqa: T201  as above


if __name__ == "__main__":
    main()
