"""Fuzz addresses as people write them: where to listen, URLs of stores, and sizes and durations."""

from __future__ import annotations

import math
from contextlib import suppress

from pydantic import ValidationError

from forebay_contrib.nats.declaration import NatsJetStream
from forebay_contrib.syslog.declaration import Syslog
from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.roots import root_names, split_roots
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.block_store.stores.stores import open_block_store
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.sources.fields.loopback import host_name
from receiver_runtime.sources.fields.tcp import address_of, parse_listen
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration
from tests.fuzz.target import fuzzed


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


@fuzzed(
    "listen_address",
    valid=[b"0.0.0.0:9999", b"[::1]:514", b"localhost:0"],
    words=[b"[", b"]", b":", b"65536", b"\xd9\xa3"],
    attacks=[b"a:" + b"9" * 9000, b":" * 9000],
)
def test_an_address_is_taken_by_every_source_or_by_none(data: bytes) -> None:
    listen = _text(data)
    host_name(listen)
    try:
        host, port = parse_listen(listen)
    except ValueError:
        taken = False
    else:
        taken = True
        assert host
        assert 0 <= port <= 65_535
        assert parse_listen(address_of(host, port)) == (host, port)
    for kind in (Http, Syslog):
        try:
            kind(listen=listen, **({"transports": ("tcp",)} if kind is Syslog else {}))
        except ValidationError:
            # A source may have more rules, for example where it must have tokens.
            continue
        assert taken


@fuzzed(
    "store_url",
    valid=[b"s3://KEY:SECRET@bucket/prefix?region=x", b"/data/blocks,/mnt/b", b"file:///data/a%2Cb", b"gs://b/x"],
    words=[b"://", b"[", b"]", b"@", b"%", b"%2F", b"?", b"#", b",", b"s3://", b"file://", b"?scheme=", b"?region="],
    attacks=[b"s3://[bad/x", b"file://[bad/x", b"s3://" + b"@" * 5000, b"x://[::1"],
)
def test_a_store_is_opened_or_refused_by_an_error_of_its_own(data: bytes) -> None:
    text = _text(data)
    with suppress(BlockStoreError):
        open_block_store(text)
    for root in split_roots(text):
        found = SecretUrl(root)
        str(found), repr(found), found.name, found.scrub(root), found.has_secret
    with suppress(BlockStoreError):
        root_names(text)


@fuzzed(
    "servers",
    valid=[b"localhost:9092,[::1]:9093", b"nats://a:4222", b"tls://a:1,nats://b:2"],
    words=[b"nats://", b"[", b"@", b","],
    attacks=[b"nats://[x", b"a:" + b"9" * 9000],
)
def test_a_list_of_servers_is_taken_or_refused(data: bytes) -> None:
    servers = _text(data)
    with suppress(ValidationError):
        NatsJetStream(servers=servers, stream="s", durable="d")
    with suppress(ValidationError):
        Kafka(bootstrap_servers=servers, topics=("t",), group="g")


@fuzzed(
    "units",
    valid=[b"16MiB", b"200ms", b"1.5 h", b"7d", b"1024"],
    words=[b"GiB", b".", b"\xd9\xa3"],
    attacks=[b"9" * 9000 + b"GiB"],
)
def test_a_size_or_a_duration_is_finite_or_refused(data: bytes) -> None:
    text = _text(data)
    with suppress(ValueError):
        assert math.isfinite(parse_duration(text))
    with suppress(ValueError):
        assert parse_bytes(text) >= 0
