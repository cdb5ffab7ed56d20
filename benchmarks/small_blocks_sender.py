"""A process that sends one line every interval to each of many connections, each line the time at which it was sent.

Run as ``python -m benchmarks.small_blocks_sender CONNECTIONS INTERVAL_SECONDS``: it prints its port, takes connections
until it has so many, and sends until its standard input ends. Then it prints how many lines it sent. Connections are
spread evenly over the interval, as unrelated sources are.
"""

from __future__ import annotations

import select
import socket
import sys
import time

_LOOK_SECONDS = 0.002


def main() -> None:
    """Serve, then tell."""
    wanted, interval = int(sys.argv[1]), float(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", 0), backlog=wanted)
    print(listener.getsockname()[1], flush=True)  # noqa: T201  how the benchmark learns it
    connections = [listener.accept()[0] for _ in range(wanted)]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The benchmark says when all are ready, and then when it is over, by a byte each.
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
