"""Check that the OpenAPI document describes everything that the server has, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pyarrow as pa
import pytest

from forebay import Stream
from forebay.cli.checks.findings import Health
from forebay.cli.checks.source_checks import check_declaration
from receiver_runtime.receivers.http.declaration import STREAM_PATH, Http
from receiver_runtime.receivers.http.description import describe
from receiver_runtime.receivers.http.routes import routes_of
from receiver_runtime.record_formats.json_reader import JsonReader
from receiver_runtime.sources.fields.hmac_signature import Hmac
from receiver_runtime.sources.records.json_records import Json
from receiver_runtime.sources.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator


def described(stream: str = "orders", **fields: Any) -> dict[str, Any]:  # noqa: ANN401  fields of the source
    source = Http(listen="127.0.0.1:0", **fields)
    return describe(source, stream, routes_of(source))


def test_records_of_a_typed_stream_are_described_from_its_columns() -> None:
    records = Json("item STRING NOT NULL, pieces INT, at TIMESTAMP, tags ARRAY<STRING>, to STRUCT<zip: DECIMAL(5, 0)>")
    source = Http(listen="127.0.0.1:0")
    document = describe(source, "orders", routes_of(source), records)
    push = document["paths"]["/v1/orders"]["post"]
    assert "422" in push["responses"]
    assert "422" not in described()["paths"]["/v1/orders"]["post"]["responses"]
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]
    body = push["requestBody"]["content"]["application/json"]["schema"]
    check = jsonschema_rs.validator_for({**body, "components": document["components"]})
    reader = JsonReader(records)
    for record, fits in (
        ({"item": "a", "pieces": 2, "at": "2026-01-02T03:04:05Z", "tags": ["x", None], "to": {"zip": "1"}}, True),
        ({"item": "a", "pieces": None, "more": 1}, True),
        ({"pieces": 1}, False),
        ({"item": None}, False),
        ({"item": "a", "pieces": 2**31}, False),
        ({"item": "a", "pieces": "1"}, False),
        ({"item": "a", "tags": [1]}, False),
        ({"item": "a", "to": {"zip": []}}, False),
    ):
        assert (record, not reader.read(pa.array([json.dumps(record).encode()], pa.binary())).faults) == (record, fits)
        assert (record, check.is_valid(record), check.is_valid([record])) == (record, fits, fits)


def references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(part, list):
        for item in part:
            yield from references(item)


@pytest.mark.parametrize("opentelemetry", [False, True])
def test_each_route_is_described_with_its_media_types(opentelemetry: bool) -> None:
    protocols = ("cloudevents", "opentelemetry") if opentelemetry else None
    source = Http(listen="127.0.0.1:0", protocols=protocols)
    document = described(protocols=protocols)
    for route in routes_of(source):
        path = "/v1/orders" if route.path == STREAM_PATH else route.path
        assert route.described.bodies
        assert set(route.described.bodies) <= set(document["paths"][path]["post"]["requestBody"]["content"])
    assert ("/v1/logs" in document["paths"]) is opentelemetry
    json.dumps(document, allow_nan=False)


def test_a_protocol_that_no_package_registers_is_refused_and_found_before_it_is_applied() -> None:
    source = Http(listen="127.0.0.1:0", protocols="smoke_signals")
    with pytest.raises(SourceError, match="'smoke_signals' is no protocol: use some of cloudevents, elasticsearch"):
        routes_of(source)
    [found] = check_declaration(Stream("orders", source))
    assert (found.health, "'smoke_signals'" in found.found) == (Health.FAILED, True)


def test_every_reference_has_a_target() -> None:
    document = described(protocols=("cloudevents", "opentelemetry"), webhook_origins="*")
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


def test_tokens_are_required_but_not_revealed() -> None:
    document = described(tokens="env:A_SECRET", protocols=("cloudevents", "opentelemetry"))
    for path in ("/v1/orders", "/v1/logs"):
        assert document["paths"][path]["post"]["security"] == [{"token": []}]
        assert "401" in document["paths"][path]["post"]["responses"]
    assert "A_SECRET" not in json.dumps(document)
    assert "security" not in described()["paths"]["/v1/orders"]["post"]


def test_web_hooks_are_described_only_if_enabled() -> None:
    assert "options" in described(webhook_origins="*")["paths"]["/v1/orders"]
    assert "options" not in described()["paths"]["/v1/orders"]


def test_a_missing_extra_is_reported_in_one_sentence_and_only_if_needed() -> None:
    program = """
import sys
sys.modules['opentelemetry'] = None
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.sources.records.json_records import Json
from receiver_runtime.sources.source import SourceError
make_receiver(Http(listen='127.0.0.1:0'))
assert 'google.protobuf' not in sys.modules
try:
    make_receiver(Http(listen='127.0.0.1:0', protocols=['opentelemetry']))
except SourceError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert "pip install 'forebay[otlp]'" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1


def test_signatures_and_the_place_of_the_key_are_described() -> None:
    verify = Hmac(secrets="env:A_SECRET", header="X-Signature")
    document = described(verify=verify, key_from="header:X-Id")
    push = document["paths"]["/v1/orders"]["post"]
    assert push["security"] == [{"signature": []}]
    assert document["components"]["securitySchemes"]["signature"]["name"] == "X-Signature"
    assert {"401", "403"} <= set(push["responses"])
    assert [found["name"] for found in push["parameters"]] == ["ack", "X-Id"]
    assert "A_SECRET" not in json.dumps(document)
    in_body = described(key_from="body:/id")["paths"]["/v1/orders"]["post"]
    assert [found["name"] for found in in_body["parameters"]] == ["ack"]
