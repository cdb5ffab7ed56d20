"""Check what is said of a consumer that someone else created or changed. `test_conformance` tests it on a server."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig, StreamSource

from forebay_contrib.nats import reader as nats_reader
from forebay_contrib.nats.client import NatsError
from forebay_contrib.nats.consumer import DurableConsumer, _seen
from forebay_contrib.nats.declaration import NatsJetStream
from forebay_contrib.nats.reader import NatsReader
from forebay_contrib.nats.receiver import NatsJetStreamReceiver
from forebay_contrib.nats.session import KnownConsumer
from receiver_runtime.sources.receiver_settings import ReceiverSettings

SOURCE = NatsJetStream(servers="127.0.0.1:4222", stream="S", durable="d")


def _consumer(config: ConsumerConfig, said: list[str]) -> DurableConsumer:
    async def info(*_: object) -> SimpleNamespace:
        return SimpleNamespace(config=config)

    jetstream = SimpleNamespace(stream_info=info, consumer_info=info)
    client: Any = SimpleNamespace(jetstream=lambda **_: jetstream)
    path = SimpleNamespace(positions=None)
    receiver: Any = SimpleNamespace(supervisor=SimpleNamespace(block_path=path), report_error=said.append)
    return DurableConsumer(receiver, SOURCE, client, KnownConsumer())


@pytest.mark.parametrize("look_at", [0.0, math.inf])
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"max_deliver": 2}, "max_deliver 2"),
        ({"headers_only": True}, "headers_only"),
        ({"ack_policy": AckPolicy.NONE}, "ack_policy 'none'"),
    ],
)
def test_a_consumer_that_is_changed_while_it_is_read_is_refused(
    changed: dict[str, Any], said: str, look_at: float
) -> None:
    consumer = _consumer(ConsumerConfig(**{"ack_policy": AckPolicy.EXPLICIT, **changed}), [])
    consumer._look_at = look_at
    with pytest.raises(NatsError, match=said):
        asyncio.run(consumer.refresh())


def test_the_reader_fails_if_its_consumer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_reader, "LOOK_SECONDS", 0.0)
    receiver = NatsJetStreamReceiver(SOURCE)
    attached: Any = SimpleNamespace(
        settings=ReceiverSettings(),
        receiver_id=1,
        record_schema=receiver.record_schema,
        block_path=SimpleNamespace(positions=None),
    )
    receiver.attach_supervisor(attached)
    reader = receiver.make_run()
    assert isinstance(reader, NatsReader)
    reader._consumer = _consumer(ConsumerConfig(ack_policy=AckPolicy.NONE), [])
    asyncio.run(asyncio.wait_for(reader._watch_consumer(), 10))
    assert "ack_policy" in str(reader._failed)


@pytest.mark.parametrize(
    ("waiting", "said"),
    [([2, 2, 2, 2], 0), ([3, 2, 3, 2, 3], 0), ([2, 3, 3, 3, 3], 1), ([3, 3, 1, 3, 3], 2), ([None, None], 0)],
)
def test_more_open_requests_than_receivers_are_reported_as_another_programs(
    waiting: list[int | None], said: int
) -> None:
    found: list[str] = []
    consumer: Any = _consumer(ConsumerConfig(), found)
    consumer._positions = SimpleNamespace(peers=lambda: ["one receiver", "the other"])

    async def look() -> None:
        for number in waiting:
            await consumer._look_for_others(SimpleNamespace(num_waiting=number))

    asyncio.run(look())
    assert len(found) == said
    assert all("another program requests messages of the consumer 'd'" in one for one in found)


@pytest.mark.parametrize(("filters", "is_filtered"), [([], False), ([">"], False), (["a"], True), (["a", "b"], True)])
def test_a_filter_that_reads_all_is_none(filters: list[str], is_filtered: bool) -> None:
    one = filters[0] if len(filters) == 1 else None
    config = ConsumerConfig(filter_subject=one, filter_subjects=None if one else filters)
    state = SimpleNamespace(first_seq=1, last_seq=3, messages=3)
    about: Any = SimpleNamespace(created=None, state=state, config=StreamConfig())
    consumer: Any = SimpleNamespace(
        config=config, created=None, delivered=None, ack_floor=None, num_pending=0, num_ack_pending=0
    )
    assert _seen(about, consumer).is_filtered is is_filtered


@pytest.mark.parametrize(
    ("filters", "subjects", "sources", "way_out"),
    [
        ([], ["a"], None, None),
        ([">"], ["a", "b"], None, None),
        ([">"], None, None, None),
        (["a"], ["a"], None, None),
        (["b", "a"], ["a", "b"], None, None),
        (["a"], ["a", "b"], None, "do not come; declare subject='a', or create it without a filter"),
        (["a"], None, None, "do not come; declare subject='a', or create it without a filter"),
        (["a"], ["a"], [StreamSource(name="T")], "do not come; declare subject='a', or create it without a filter"),
        (["a", "b"], ["a", "b", "c"], None, "do not come; create it without a filter"),
    ],
)
def test_a_filter_that_leaves_out_messages_of_the_stream_is_reported_with_the_way_out(
    filters: list[str], subjects: list[str] | None, sources: list[StreamSource] | None, way_out: str | None
) -> None:
    said: list[str] = []
    one = filters[0] if len(filters) == 1 else None
    config = ConsumerConfig(filter_subject=one, filter_subjects=None if one else filters)
    _consumer(config, said)._report_filter(StreamConfig(subjects=subjects, sources=sources), config)
    assert [text.partition("messages of other subjects ")[2] for text in said] == ([] if way_out is None else [way_out])
