"""Receive what real clients of statsd and DogStatsD send, over UDP and TCP, into columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import statsd
from datadog.dogstatsd.base import DogStatsd

from forebay_contrib.statsd.declaration import Statsd
from receiver_runtime.block_path.records import schema_of
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.source_registry import parse_source
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import eventually, reaches

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOST = "127.0.0.1"


def received(root: Path, kind: str, send: Callable[[int], None], count: int, keep: Any = None) -> list[dict[str, Any]]:  # noqa: ANN401  a field
    """Return the rows of a typed stream, without what is null in them."""
    source = parse_source({"kind": kind, "listen": f"{HOST}:0"})
    check = TypedRows(Statsd(keep=keep), schema_of(source.columns), source.record_column or "")
    found: list[dict[str, Any]] = []
    with rig(root, make_receiver(source), row_check=check) as made:
        eventually(lambda: any(reason.startswith("listening on ") for reason in made.reporter.reasons), "listening")
        send(int([r for r in made.reporter.reasons if r.startswith("listening on ")][-1].rpartition(":")[2]))
        eventually(reaches(lambda: sum(block.records for block in made.log.chain(1)), count))
        for item in made.log.chain(1):
            handle = item.handle
            path = made.rows.paths[handle.segment_id]
            for batch in made.store.read_batches(path, handle.offset, handle.length, handle.crc32c):
                found += batch.to_pylist()
        assert made.dead_letters() == []
    return [{name: value for name, value in row.items() if value is not None} for row in found]


def test_a_plain_client_over_udp_and_tcp(tmp_path: Path) -> None:
    def use(client: Any) -> None:  # noqa: ANN401  it has no types
        client.incr("page.views")
        client.decr("stock", 3)
        client.timing("request", 12.5)
        client.gauge("fuel", 0.5)
        client.gauge("fuel", -0.25, delta=True)
        client.gauge("fuel", 1, delta=True)
        client.set("users", "alice")
        client.incr("sampled", rate=0.9999999)

    def over_udp(port: int) -> None:
        client = statsd.StatsClient(HOST, port, prefix="shop")
        use(client)
        # Several lines in one datagram.
        with client.pipeline() as pipeline:
            pipeline.incr("one")
            pipeline.incr("two")
        client.close()

    def over_tcp(port: int) -> None:
        client = statsd.TCPStatsClient(HOST, port, prefix="shop")
        use(client)
        client.close()

    expected: list[dict[str, Any]] = [
        {"name": "shop.page.views", "type": "c", "value": 1.0, "text": "1"},
        {"name": "shop.stock", "type": "c", "value": -3.0, "text": "-3"},
        {"name": "shop.request", "type": "ms", "value": 12.5, "text": "12.500000"},
        {"name": "shop.fuel", "type": "g", "value": 0.5, "text": "0.5"},
        {"name": "shop.fuel", "type": "g", "value": -0.25, "text": "-0.25"},
        {"name": "shop.fuel", "type": "g", "value": 1.0, "text": "+1"},
        {"name": "shop.users", "type": "s", "text": "alice"},
        {"name": "shop.sampled", "type": "c", "value": 1.0, "text": "1", "sample_rate": 0.9999999},
    ]
    expected = [{"sample_rate": 1.0, **row} for row in expected]
    lines = [
        {"name": f"shop.{name}", "type": "c", "value": 1.0, "text": "1", "sample_rate": 1.0} for name in ("one", "two")
    ]
    rows = received(tmp_path / "udp", "datagrams", over_udp, 10, keep=["_sender"])
    assert {row.pop("_sender") for row in rows} == {HOST}
    assert rows == [*expected, *lines]
    assert received(tmp_path / "tcp", "socket_text", over_tcp, 8) == expected


def test_a_client_of_datadog_with_tags_events_and_checks(tmp_path: Path) -> None:
    def send(port: int) -> None:
        client = DogStatsd(
            host=HOST,
            port=port,
            disable_telemetry=True,
            origin_detection_enabled=False,
            container_id="ci-1",
            constant_tags=["env:prod", "beta"],
            disable_buffering=True,
        )
        client.increment("page.views", tags=["path:/a:b"])
        client.gauge_with_timestamp("fuel", 0.5, 1_656_581_400)
        client.distribution("size", 3, cardinality="low")
        client.set("users", "alice")
        client.event("down|up", "first\nsecond é", alert_type="error", date_happened=1_656_581_400, hostname="web")
        client.service_check("redis", 2, message="m: down", timestamp=1_656_581_400)
        client.close_socket()

    rows = received(tmp_path, "datagrams", send, 6, keep=[])
    for row in rows:
        assert dict(row.pop("tags")).items() >= {"env": "prod", "beta": None}.items()
    times = [row.pop("timestamp").timestamp() for row in rows if "timestamp" in row]
    assert times == [1_656_581_400] * 3
    for row in rows:
        row.pop("container", None)
    assert rows == [
        {"name": "page.views", "type": "c", "value": 1.0, "text": "1", "sample_rate": 1.0},
        {"name": "fuel", "type": "g", "value": 0.5, "text": "0.5", "sample_rate": 1.0},
        {"name": "size", "type": "d", "value": 3.0, "text": "3", "sample_rate": 1.0, "other": "card:low"},
        {"name": "users", "type": "s", "text": "alice", "sample_rate": 1.0},
        {"name": "down|up", "type": "_e", "text": "first\\nsecond é", "other": "h:web|t:error"},
        {"name": "redis", "type": "_sc", "value": 2.0, "text": "m\\: down"},
    ]
