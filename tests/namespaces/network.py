"""Hosts as network namespaces on one bridge, each of which can be cut off; needs root and iproute2.

The machine itself is the bridge's other end: what it serves at the bridge's address, a host that is cut off can't
reach. What runs in a host goes on: its processes, its loopback and its disk.
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
    """Hosts on a bridge, made when this is entered and gone when it is left."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = tuple(hosts)
        number = os.getpid()
        self._subnet = f"10.213.{number % 250}"
        self._bridge = f"fb{number:x}"
        self._namespaces = {host: f"forebay-{number}-{host}" for host in hosts}
        self._links = {host: f"fb{number:x}v{index}" for index, host in enumerate(hosts)}

    @property
    def address(self) -> str:
        """Of this machine, as the hosts see it."""
        return f"{self._subnet}.1"

    @property
    def subnet(self) -> str:
        """All of them, as a CIDR."""
        return f"{self._subnet}.0/24"

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """The command that runs this in a host; it becomes the very process."""
        return ["ip", "netns", "exec", self._namespaces[host], *command]

    def cut(self, host: str) -> None:
        """Pull its cable: what is sent either way is lost, and no one is told."""
        _ip("link", "set", self._links[host], "down")

    def heal(self, host: str) -> None:
        """Put it back."""
        _ip("link", "set", self._links[host], "up")

    def listen(self, host: str, port: int = 0) -> socket.socket:
        """A listener on a host's own loopback, to be used from here."""

        def made() -> socket.socket:
            # A thread's namespace is its own, and a socket stays in the one that it was made in.
            descriptor = os.open(f"/run/netns/{self._namespaces[host]}", os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(descriptor)
            return socket.create_server(("127.0.0.1", port))

        with ThreadPoolExecutor(1) as threads:
            return threads.submit(made).result()

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
        # A namespace takes its end of the cable with it, and that the other.
        for namespace in self._namespaces.values():
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
