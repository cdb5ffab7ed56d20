"""Count a listener's open connections, in all and by peer, from the moment when each is accepted.

A peer is a host. An IPv6 host is known by its network of 64 bits, because a host may use any address of it. This module
opens and closes no connection.
"""

from __future__ import annotations

import ipaddress

_IPV6_NETWORK_BITS = 64


class ConnectionPlaces:
    """Count connections within two limits. Only one thread may use it.

    Args:
        most: the most connections in all.
        most_per_peer: the most connections of one peer.
    """

    def __init__(self, *, most: int, most_per_peer: int) -> None:
        self._most = most
        self._most_per_peer = most_per_peer
        self._by_peer: dict[str, int] = {}
        self.taken = 0

    def why_full(self, peer: str) -> str | None:
        """Return which limit leaves no place for one more connection of ``peer``, or None."""
        if self.taken >= self._most:
            return f"{self._most} are open, which is max_connections"
        if self.is_full_for(peer):
            return f"{self._most_per_peer} of this peer are open, which is max_connections_per_peer"
        return None

    def is_full_for(self, peer: str) -> bool:
        """Return whether ``peer`` has as many connections as one peer may have."""
        return self._by_peer.get(peer, 0) >= self._most_per_peer

    def take(self, peer: str) -> None:
        """Count a connection."""
        self.taken += 1
        self._by_peer[peer] = self._by_peer.get(peer, 0) + 1

    def release(self, peer: str) -> None:
        """Count a connection no more."""
        self.taken -= 1
        left = self._by_peer[peer] - 1
        if left:
            self._by_peer[peer] = left
        else:
            del self._by_peer[peer]


def peer_of(host: str) -> str:
    """Return the peer to which a connection from this host counts."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _IPV6_NETWORK_BITS), strict=False).network_address)
