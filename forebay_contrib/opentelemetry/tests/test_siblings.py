"""Check which receivers may share a port, and what happens to one that does not answer."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from forebay_contrib.opentelemetry.door import addresses, siblings
from forebay_contrib.opentelemetry.door.exchange import scope_of
from forebay_contrib.opentelemetry.door.server import OtlpServer
from forebay_contrib.opentelemetry.door.siblings import SiblingGoneError, Siblings
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


def test_a_receiver_that_does_not_answer_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "_DECISION_SECONDS", 0)

    async def never() -> Any:  # noqa: ANN401  a message of ASGI
        raise AssertionError("the body was not asked for")

    async def pass_on(one: Siblings) -> None:
        async with asyncio.timeout(30):
            await one.pass_on("logs", scope_of("POST", "/v1/logs", []), never)

    with held_port() as port, named(made("logs", port)) as name:
        name.listen()
        with pytest.raises(SiblingGoneError):
            asyncio.run(pass_on(made("traces", port)))


def test_a_name_that_another_process_keeps_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "_NAME_PAUSE", 0)
    reports: list[str] = []

    async def application(*_: object) -> None:
        raise AssertionError("nothing was sent")

    async def take(one: Siblings) -> None:
        reported = asyncio.Event()

        def report(message: str, error: OSError) -> None:
            reports.append(f"{message}: {error}")
            reported.set()

        async with asyncio.timeout(30), one.taking(application, None, report):
            await reported.wait()
            for _ in range(siblings._REPORTED_ATTEMPT):
                await asyncio.sleep(0)

    with held_port() as port, named(made("logs", port)):
        asyncio.run(take(made("logs", port)))
    assert ["another process has this receiver's name" in one for one in reports] == [True]
