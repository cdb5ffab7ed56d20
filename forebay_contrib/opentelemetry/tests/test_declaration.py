"""Check what may be declared, and which streams may have one address."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from forebay import Stream
from forebay.cli.checks.findings import Health
from forebay.cli.checks.source_checks import check_listening
from forebay.cli.commands.validate import _conflicts
from forebay.sources import Http, OtlpLogs, OtlpMetrics, OtlpTraces
from receiver_runtime.sources.source_registry import parse_source
from tests.support.machine.held_ports import held_port

AT = {"listen": "127.0.0.1:4318", "grpc": "127.0.0.1:4317"}


def test_one_stream_of_each_signal_may_have_an_address() -> None:
    streams = [Stream("l", OtlpLogs(**AT)), Stream("t", OtlpTraces(**AT)), Stream("m", OtlpMetrics(**AT))]
    assert list(_conflicts([], streams)) == []
    [found] = _conflicts([], [*streams, Stream("again", OtlpTraces(**AT))])
    assert (found.health, "again (otlp_traces) listen at the same address" in found.found) == (Health.FAILED, True)
    listen = {"listen": AT["listen"]}
    assert len(list(_conflicts([], [Stream("l", OtlpLogs(**listen)), Stream("h", Http(**listen))]))) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": "env:B_TOKEN"},
        {"tls": {"certificate_file": "/c", "ca_file": "/a"}},
        {"listen": "127.0.0.1:4319"},
        {"grpc": None, "tokens": "env:B_TOKEN"},
    ],
)
def test_streams_at_one_address_ask_the_same_of_senders(fields: dict[str, object]) -> None:
    streams = [Stream("l", OtlpLogs(**AT)), Stream("t", OtlpTraces.model_validate({**AT, **fields}))]
    [found] = _conflicts([], streams)
    assert (found.health, "l (otlp_logs), t (otlp_traces) listen at the same" in found.found) == (Health.FAILED, True)
    assert "differ in listen, tls or tokens" in found.found
    assert list(_conflicts([], [streams[0], Stream("t", OtlpTraces(listen=AT["listen"]))])) == []


def test_both_addresses_are_looked_at() -> None:
    with held_port() as free:
        found = check_listening(
            Stream("l", OtlpLogs(listen=f"127.0.0.1:{free}", grpc="192.0.2.1:4317")), ours=set, is_here=True
        )
        assert [one.health for one in found] == [Health.OK, Health.WARNING]


def test_a_declaration_is_stored_and_read_back() -> None:
    source = OtlpMetrics(**AT, tokens="env:A_TOKEN", max_body_bytes="1MiB")
    assert parse_source(source.model_dump(mode="json")) == source
    assert source.address == "http://127.0.0.1:4318 and gRPC at 127.0.0.1:4317"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"listen": "4318"}, "is no address to listen on"),
        ({"listen": AT["listen"], "grpc": AT["listen"]}, "give gRPC a port of its own"),
        ({"listen": AT["listen"], "max_body_bytes": "100MiB"}, "has no room for one body"),
        ({"listen": AT["listen"], "tls": True}, "give certificate_file"),
    ],
)
def test_what_can_not_work_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        OtlpLogs.model_validate(fields)
