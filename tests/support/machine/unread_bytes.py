"""Count the bytes sent between two processes of this machine and not yet read, as Linux reports them."""

from __future__ import annotations

from pathlib import Path

_CONNECTIONS = Path("/proc/net/tcp")
_ESTABLISHED = "01"


def unread_bytes(server_port: int) -> int:
    """Return the bytes that the kernel holds for a server's connections, on either side; a stop loses them."""
    count = 0
    for line in _CONNECTIONS.read_text(encoding="ascii").splitlines()[1:]:
        _, local, remote, state, queues, *_ = line.split()
        ports = int(local.partition(":")[2], 16), int(remote.partition(":")[2], 16)
        if state == _ESTABLISHED and server_port in ports:
            count += sum(int(queue, 16) for queue in queues.split(":"))
    return count
