"""MQTT in the conformance suite, and MQTT's own behaviour, on Debian's mosquitto. ``make brokers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import SourceConformance, stop
from forebay_contrib.mqtt.tests.mqtt_source import MqttTopic
from tests.support.brokers.mosquitto import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.testing.source_rig import SourceRig

# In seconds. A test waits for several things in turn, each for as long as a process start takes on a busy machine.
pytestmark = [pytest.mark.brokers, pytest.mark.timeout(240, func_only=True)]


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """Start mosquitto for the module. A test that stops it must start it again."""
    made = Mosquitto(tmp_path_factory.mktemp("mosquitto"), {"max_inflight_messages": 2000})
    made.start()
    yield made
    made.close()


def needs_sharing(request: pytest.FixtureRequest) -> bool:
    """Return whether a test needs a shared subscription; the others avoid it.

    After a restart, mosquitto 2.0.11 does not know shared subscriptions until their clients subscribe again, and what
    is published meanwhile goes to no client.
    """
    return "receivers_come_and_go" in request.node.name


class TestMqtt(SourceConformance):
    """MQTT 5, QoS 1, keys in a user property: at least once, deduplicated."""

    moves_to_others = False

    @pytest.fixture
    def adapter(self, mosquitto: Mosquitto, request: pytest.FixtureRequest) -> Iterator[MqttTopic]:
        made = MqttTopic(mosquitto, shared=needs_sharing(request))
        yield made
        made.close()


class TestMqtt311(SourceConformance):
    """MQTT 3.1.1, QoS 2, keys in the payload."""

    moves_to_others = False

    @pytest.fixture
    def adapter(self, mosquitto: Mosquitto, request: pytest.FixtureRequest) -> Iterator[MqttTopic]:
        made = MqttTopic(mosquitto, version="3.1.1", qos=2, shared=needs_sharing(request))
        yield made
        made.close()


def test_a_message_repeated_at_once_is_stored_once(mosquitto: Mosquitto, make_rig: Callable[..., SourceRig]) -> None:
    """Send both before anything is read, so that they are read together."""
    topic = MqttTopic(mosquitto, shared=False)
    rig = make_rig(topic.source())
    for name in ("a", "b", "a", "c", "a", "c", "the last"):
        topic.publish(name.encode(), name)
    topic.wait_until_published()
    process = rig.start()
    eventually(lambda: rig.registered() >= 4, "each of them")
    stop(process)
    assert [row["value"] for row in rig.rows()] == [b"a", b"b", b"c", b"the last"]
    topic.close()
