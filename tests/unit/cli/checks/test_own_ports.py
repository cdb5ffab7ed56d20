"""Test who holds a port: what the operating system says of processes that this account may not look at, too."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from forebay.cli.checks.findings import Health
from forebay.cli.checks.own_ports import Holder, holder_of, pids_of_home
from forebay.cli.checks.source_checks import check_listening

if TYPE_CHECKING:
    from pathlib import Path

PORT = 7001
OURS = 5


def held(ip: str, pid: int | None, *, port: int = PORT, status: str = psutil.CONN_LISTEN) -> SimpleNamespace:
    return SimpleNamespace(laddr=SimpleNamespace(ip=ip, port=port), pid=pid, status=status)


@pytest.mark.parametrize(
    ("found", "holder"),
    [
        ([held("127.0.0.1", OURS)], Holder.OURS),
        ([held("::", OURS)], Holder.OURS),
        ([held("::ffff:127.0.0.1", OURS)], Holder.OURS),
        ([held("::ffff:127.0.0.2", OURS)], Holder.UNKNOWN),
        ([held("0.0.0.0", 6)], Holder.ANOTHER),
        ([held("127.0.0.1", None)], Holder.UNKNOWN),
        ([held("127.0.0.1", 6), held("::", None)], Holder.UNKNOWN),
        ([held("127.0.0.2", 6), held("127.0.0.1", 6, port=1), SimpleNamespace(laddr=())], Holder.UNKNOWN),
        # A connection to another program may have the port as its own.
        ([held("127.0.0.1", 6, status=psutil.CONN_ESTABLISHED)], Holder.UNKNOWN),
        (psutil.AccessDenied(), Holder.UNKNOWN),
        (PermissionError(), Holder.UNKNOWN),
    ],
)
def test_who_holds_a_port(
    monkeypatch: pytest.MonkeyPatch, found: list[SimpleNamespace] | Exception, holder: Holder
) -> None:
    def net_connections(kind: str) -> list[SimpleNamespace]:
        assert kind == "tcp"
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(psutil, "net_connections", net_connections)
    assert holder_of("127.0.0.1", PORT, datagrams=False, ours=lambda: {OURS}) is holder


def test_a_port_without_a_listener_is_a_warning() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{bound.getsockname()[1]}"
        stream: Any = SimpleNamespace(name="lines", source=SimpleNamespace(listen=place, further_addresses=()))
        [finding] = check_listening(stream, ours=set, is_here=True)
    assert finding.health is Health.WARNING
    assert finding.found == f"{place} is in use, and this account can't see by which process"


def test_a_home_that_can_not_be_read_has_no_processes(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert pids_of_home(tmp_path / "file") == set()
