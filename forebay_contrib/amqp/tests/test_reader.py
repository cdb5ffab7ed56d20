"""Check what an AMQP reader takes at once. `test_conformance` tests everything else, on RabbitMQ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from forebay_contrib.amqp.client import DecodedProperties
from forebay_contrib.amqp.declaration import Amqp
from forebay_contrib.amqp.receiver import AmqpReceiver
from forebay_contrib.amqp.records import Message
from receiver_runtime.sources.receiver_settings import ReceiverSettings

if TYPE_CHECKING:
    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor


def test_messages_that_piled_up_are_taken_one_block_at_a_time() -> None:
    """After a wait, all messages together may be more than one batch can hold."""
    receiver = AmqpReceiver(Amqp(host="127.0.0.1", queues=("q",)))
    settings = ReceiverSettings(max_block_bytes=2048)
    attached = SimpleNamespace(
        settings=settings, receiver_id=1, record_schema=receiver.record_schema, block_path=SimpleNamespace()
    )
    receiver.attach_supervisor(cast("AttachedSupervisor", attached))
    reader = receiver.make_run()
    sizes = [1000, 1000, 1000, 0, 5000, 10, 10]
    came = [
        Message(tag, "q", "", "q", redelivered=False, properties=DecodedProperties(), body=b"x" * size)
        for tag, size in enumerate(sizes, 1)
    ]
    reader._coming = list(came)
    reader._stopping = True
    assert [[one.tag for one in reader._take()] for _ in range(4)] == [[1, 2, 3], [4, 5], [6, 7], []]
