"""Check which receivers may share a port."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from forebay_contrib.opentelemetry.door import addresses
from forebay_contrib.opentelemetry.door.server import OtlpServer
from forebay_contrib.opentelemetry.door.siblings import Siblings
from forebay_contrib.opentelemetry.tests.signal_receivers import KINDS
from tests.support.machine.held_ports import held_port

TLS = {"certificate_file": "/certificate", "key_file": "/key"}
FIELDS: dict[str, Any] = {"tokens": "env:A_TOKEN", "tls": TLS}


def made(signal: str, port: int, *, agent: int | None = None, **fields: object) -> Siblings:
    source = KINDS[signal].model_validate({"listen": f"127.0.0.1:{port}", **fields})
    return Siblings(source.listen, signal, terms=source.address_terms, agent=agent)


def named(one: Siblings) -> socket.socket:
    name = one.open_name()
    assert name is not None
    return name


def test_a_port_of_another_system_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_PAUSE", 0)
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
        port = other.getsockname()[1]
        receiver: Any = SimpleNamespace(supervisor=SimpleNamespace(settings=SimpleNamespace(max_block_bytes=1)))
        server = OtlpServer(
            receiver, KINDS["logs"].model_validate({"listen": f"127.0.0.1:{port}"}).http(), [], grpc=None
        )
        with pytest.raises(OSError, match="in use"):
            server.open_listener()
        traces = made("traces", port)
        with named(traces) as name:
            # It starts at the same time, and has no port either.
            with pytest.raises(OSError, match="in use"):
                server.open_listener()
            name.listen()
            for signal in ("logs", "traces"):
                listener, own = made(signal, port).open_port(backlog=1)
                with listener:
                    assert listener.getsockname() == other.getsockname()
                    assert (own is None) == (signal == "traces")
                if own is not None:
                    own.close()


@pytest.mark.parametrize(
    ("fields", "is_shared"),
    [
        ({}, True),
        ({"max_connections": 7}, True),
        ({"tokens": ()}, False),
        ({"tokens": "env:B_TOKEN"}, False),
        ({"tls": None}, False),
        ({"tls": {**TLS, "ca_file": "/authority"}}, False),
        ({"tls": {**TLS, "key_password": "env:A_PASSWORD"}}, False),
        ({"agent": 1}, False),
    ],
)
def test_only_receivers_that_ask_the_same_of_senders_share_an_address(
    fields: dict[str, Any], *, is_shared: bool
) -> None:
    with held_port() as port, named(made("logs", port, **FIELDS)) as name:
        name.listen()
        assert made("traces", port, **{**FIELDS, **fields}).is_shared() is is_shared
