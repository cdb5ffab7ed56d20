"""Tell addresses that each host has for itself from addresses that mean the same on every host."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether a name or an address means the host itself: ``localhost``, ``127.0.0.1``, ``::1``; no look-up."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        # A name. What it resolves to may differ from host to host, so it is not looked up here.
        return False


def are_loopback(servers: str) -> bool:
    """Return whether each of ``host:port,host:port`` is a loopback address."""
    return all(is_loopback(server.strip().rpartition(":")[0] or server.strip()) for server in servers.split(","))
