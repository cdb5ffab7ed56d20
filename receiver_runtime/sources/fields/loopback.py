"""Tell addresses that each host has for itself from addresses that mean the same on every host."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether a name or an address means the host itself: ``localhost``, ``127.0.0.1``, ``::1``; no look-up."""
    name = host.strip("[]").rstrip(".").lower()
    return name.endswith(".localhost") or is_written_as_loopback(name)


def is_written_as_loopback(host: str) -> bool:
    """Return whether it is ``localhost`` or a loopback address, in no other spelling. For checks of access."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A name. What it resolves to may differ from host to host, so it is not looked up here.
        return False


def host_name(host_header: str) -> str:
    """Return the name or address in a Host header, without the port and in lower case."""
    host = host_header.lower()
    if host.startswith("[") and "]" in host:
        return host[1 : host.index("]")]
    return host.rpartition(":")[0] or host


def are_loopback(servers: str) -> bool:
    """Return whether each of ``host:port,host:port`` is a loopback address."""
    return all(is_loopback(server.strip().rpartition(":")[0] or server.strip()) for server in servers.split(","))
