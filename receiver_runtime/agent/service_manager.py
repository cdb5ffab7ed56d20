"""Report the agent's state to systemd (``Type=notify``): ready, alive, stopping.

Owns the protocol of sd_notify, a datagram to the socket in NOTIFY_SOCKET. Without that variable it does nothing. It
must never fail or delay the agent: a datagram that can't be sent is logged once and left out.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

# What systemd gives to the main process alone: a child that inherited them would speak for the agent.
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

log = structlog.get_logger(__name__)


class ServiceManager:
    """Report to the service manager that started this process, if there is one."""

    def __init__(self, address: str | None) -> None:
        """Prepare to send to `address`: a path, or a name of the abstract namespace after an @; None: to nothing."""
        self._address = f"\0{address[1:]}" if address is not None and address.startswith("@") else address
        self._has_failed = False

    @classmethod
    def taken_from(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """Return the one that `environment` names, and remove its variables there, so that no child has them."""
        values = {name: environment.pop(name, None) for name in _VARIABLES}
        return cls(values["NOTIFY_SOCKET"])

    def ready(self) -> None:
        """Report that the process does its work from now on."""
        self._send("READY=1")

    def alive(self, status: str) -> None:
        """Report that the process is not hanging; `status` is one line that `systemctl status` shows."""
        self._send(f"WATCHDOG=1\nSTATUS={status}")

    def stopping(self) -> None:
        """Report that the process stops; from then on systemd's stop time-out counts, and not the watchdog."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
                datagrams.sendto(message.encode(), socket.MSG_DONTWAIT, self._address)
        except OSError as error:
            if not self._has_failed:
                log.warning("systemd can't be notified; is NOTIFY_SOCKET right?", error=str(error))
            self._has_failed = True
        else:
            self._has_failed = False
