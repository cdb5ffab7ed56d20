"""Hosts as network namespaces on one bridge, each of which can be cut off; needs root and iproute2.

The machine itself is the bridge's other end: a host that is cut off can't reach what the machine serves at the bridge's
address. Everything in the host keeps running: its processes, its loopback and its disk.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_CLONE_NEWNET = 0x40000000


class NoNamespacesError(Exception):
    """No network namespaces can be made here: it takes root (CAP_SYS_ADMIN and CAP_NET_ADMIN) and iproute2's `ip`."""


class Network:
    """Hosts on a bridge, created on entry and removed on exit."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = tuple(hosts)
        number = os.getpid()
        self._subnet = f"10.213.{number % 250}"
        self._bridge = f"fb{number:x}"
        self._namespaces = {host: f"forebay-{number}-{host}" for host in hosts}
        self._links = {host: f"fb{number:x}v{index}" for index, host in enumerate(hosts)}

    @property
    def address(self) -> str:
        """Return this machine's address, as the hosts see it."""
        return f"{self._subnet}.1"

    @property
    def subnet(self) -> str:
        """Return the hosts' subnet as a CIDR."""
        return f"{self._subnet}.0/24"

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs this one in a host, by exec: the process stays the same."""
        return ["ip", "netns", "exec", self._namespaces[host], *command]

    def cut(self, host: str) -> None:
        """Disconnect the host: packets either way are lost without an error."""
        _ip("link", "set", self._links[host], "down")

    def heal(self, host: str) -> None:
        """Connect the host again."""
        _ip("link", "set", self._links[host], "up")

    def listen(self, host: str, port: int = 0) -> socket.socket:
        """Listen on a host's own loopback; the socket is used from this process."""

        def made() -> socket.socket:
            # A thread has its own namespace, and a socket stays in the namespace in which it was created.
            descriptor = os.open(f"/run/netns/{self._namespaces[host]}", os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(descriptor)
            return socket.create_server(("127.0.0.1", port))

        with ThreadPoolExecutor(1) as threads:
            return threads.submit(made).result(60)

    def __enter__(self) -> Self:
        if shutil.which("ip") is None:
            raise NoNamespacesError(f"{NoNamespacesError.__doc__} There is no `ip` here.")
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self._remove()
            raise NoNamespacesError(f"{NoNamespacesError.__doc__} {error}: {error.stderr.strip()}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for index, (host, namespace) in enumerate(self._namespaces.items(), start=2):
            link = self._links[host]
            _ip("netns", "add", namespace)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("link", "set", link, "master", self._bridge)
            _ip("link", "set", link, "up")
            _ip("-n", namespace, "addr", "add", f"{self._subnet}.{index}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        # Deleting a namespace deletes its end of the veth pair, and with it the other end.
        for namespace in self._namespaces.values():
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False, timeout=120)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False, timeout=120)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=120)
