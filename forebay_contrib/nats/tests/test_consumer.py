"""Check what is said of a consumer that someone else created or changed. `test_conformance` tests it on a server."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from forebay_contrib.nats import reader as nats_reader
from forebay_contrib.nats.client import NatsError
from forebay_contrib.nats.consumer import DurableConsumer
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
