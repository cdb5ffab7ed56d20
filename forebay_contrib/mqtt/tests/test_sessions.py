"""MQTT's own behaviour: sessions, acknowledgements, pings, retained messages; on Debian's mosquitto. ``make brokers``.

The receiver is the real one, in this process; this module keeps what it hands over, and registers it when a test says.
"""

from __future__ import annotations

import contextlib
import gc
import socket
import subprocess
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

import psutil
import pytest
from paho.mqtt.client import DisconnectFlags
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from forebay_contrib.mqtt import reader as mqtt_reader
from forebay_contrib.mqtt.declaration import Mqtt
from forebay_contrib.mqtt.receiver import MqttReceiver
from forebay_contrib.mqtt.session import MqttSession
from forebay_contrib.mqtt.tests.mqtt_source import MqttTopic
from receiver_runtime.receivers.keyed_blocks import HandedOver
from receiver_runtime.sources.fields.tcp import Tls
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.polling import eventually
from tests.unit.receiver_runtime.receivers.certificates import Authority
from tracker_store.blocks.blocks import Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor

pytestmark = pytest.mark.brokers


@dataclass
class Kept:
    """A fake supervisor and hand-over that keep what they are given."""

    settings: ReceiverSettings = field(default_factory=lambda: ReceiverSettings(block_interval=0.05))
    receiver_id: int = 1
    rows: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    waiting: list[Future[HandedOver]] = field(default_factory=list)
    connected: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)
    registers: bool = True
    gate: threading.Event = field(default_factory=threading.Event)
    # The driver log's positions, by source and partition.
    links: dict[str, dict[str, Position]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate.set()

    def submit(self, batch: pa.RecordBatch, keys: pa.StringArray | None) -> Future[HandedOver]:
        assert self.gate.wait(60)
        future: Future[HandedOver] = Future()
        if self.registers:
            future.set_result(HandedOver(0, 0))
        self.keys += [None] * batch.num_rows if keys is None else keys.to_pylist()
        self.waiting.append(future)
        # Last, because a caller that sees the rows may continue at once.
        self.rows += batch.to_pylist()
        return future

    def register(self) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_result(HandedOver(0, 0))

    @property
    def block_path(self) -> Kept:
        return self

    @property
    def positions(self) -> Kept:
        return self

    def all_of(self, source: str) -> dict[str, Position]:
        return dict(self.links.get(source, {}))

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        return self.links.setdefault(source, {}).setdefault(partition, Position(0, start_offset))

    def forget(self, source: str, partitions: Sequence[str]) -> None:
        for partition in partitions:
            del self.links[source][partition]

    def is_stopped(self) -> bool:
        return False

    def close(self) -> None:
        """Leave what is under way as it is."""

    def store_dead_letters(self, letters: list[DeadLetter]) -> None:
        self.letters += letters

    def report_connected(self, where: str) -> None:
        self.connected.append(where)

    def report_error(self, message: str, error: BaseException | None = None) -> None:
        self.errors.append(message)

    def restart_receiver(self, message: str, error: BaseException | None, delay: float | None) -> None:
        self.restarts.append(message)

    def values(self) -> list[bytes]:
        return [row["value"] for row in self.rows]


class Running:
    """A receiver of a source, between its `on_start` and `on_stop`."""

    def __init__(self, source: Mqtt, kept: Kept | None = None) -> None:
        self.kept = Kept() if kept is None else kept
        self.receiver = MqttReceiver(source)
        self.receiver.attach_supervisor(cast("AttachedSupervisor", self.kept))

    @property
    def reader(self) -> mqtt_reader.MqttReader:
        """Return the reader of the newest start."""
        assert isinstance(self.receiver._current_run, mqtt_reader.MqttReader)
        return self.receiver._current_run

    def __enter__(self) -> Self:
        self.receiver.on_start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kept.gate.set()
        self.receiver.on_stop()

    def wait_until_connected(self, times: int = 1) -> None:
        eventually(lambda: len(self.kept.connected) >= times, f"a connection ({self.kept.restarts})")

    def restart_when_asked(self, times: int = 1) -> None:
        """Restart the receiver when it asks for it, as a supervisor does."""
        eventually(lambda: len(self.kept.restarts) >= times, "a restart request")
        self.receiver.on_stop()
        self.receiver.on_start()


@pytest.fixture(autouse=True)
def _keep_hand_overs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_reader, "KeyedHandOver", lambda kept, **_: kept)
    # At each end the broker must learn of everything that is registered, however long that takes here.
    monkeypatch.setattr(mqtt_reader, "_LEAVING_SECONDS", 30.0)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    made = Mosquitto(tmp_path / "mosquitto")
    made.start()
    yield made
    made.close()


@pytest.fixture(params=["5", "3.1.1"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def topic_on(broker: Mosquitto, **settings: Any) -> MqttTopic:  # noqa: ANN401  as `MqttTopic` takes them
    return MqttTopic(broker, shared=False, **settings)


@pytest.mark.parametrize("qos", [1, 2])
def test_r05_a_message_is_acknowledged_when_it_is_registered_and_not_before(
    mosquitto: Mosquitto, version: str, qos: int
) -> None:
    """Check QoS 2 too, where paho alone would acknowledge a message on arrival, and the broker would forget it."""
    topic = topic_on(mosquitto, version=version, qos=qos)
    topic.send(5)
    for _ in range(2):
        with Running(topic.source(), Kept(registers=False)) as running:
            eventually(lambda: len(running.kept.rows) == 5, "five messages")
    with Running(topic.source(), Kept(registers=False)) as running:
        eventually(lambda: len(running.kept.rows) == 5, "five messages, since none was acknowledged")
        running.kept.register()
    topic.send(1)
    with Running(topic.source()) as running:
        eventually(lambda: len(running.kept.rows) >= 1, "the sixth")
    assert running.kept.values() == [topic.sent["5"]]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_under_way_while_the_connection_breaks_is_stored_once_and_acknowledged_on_the_next(
    mosquitto: Mosquitto, version: str, qos: int
) -> None:
    topic = topic_on(mosquitto, version=version, qos=qos, keyed=False)
    with Running(topic.source(), Kept(registers=False)) as running:
        topic.send(5)
        eventually(lambda: len(running.kept.rows) == 5, "five messages")
        mosquitto.stop()
        mosquitto.start()
        running.restart_when_asked()
        running.wait_until_connected(2)
        topic.send(1)
        eventually(lambda: len(running.kept.rows) >= 6, "the sixth")
        assert running.kept.values() == list(topic.sent.values())
        running.kept.register()
    topic.send(1)
    with Running(topic.source()) as running:
        eventually(lambda: running.kept.rows, "the seventh")
    assert running.kept.values() == [topic.sent["6"]]


@pytest.mark.parametrize("qos", [1, 2])
def test_x10_what_could_not_be_handed_over_comes_again_though_nothing_more_is_sent(
    mosquitto: Mosquitto, version: str, qos: int
) -> None:
    topic = topic_on(mosquitto, version=version, qos=qos)
    kept = Kept(registers=False)
    with Running(topic.source(), kept) as running:
        topic.send(1)
        eventually(lambda: len(kept.waiting) == 1, "the message")
        kept.registers = True
        kept.waiting[0].set_exception(MemoryError("once"))
        running.restart_when_asked()
        eventually(lambda: len(kept.rows) == 2, "the message again")
    assert kept.restarts == ["what came from the MQTT broker could not be stored"]
    topic.send(1)
    with Running(topic.source()) as running:
        eventually(lambda: running.kept.rows, "the next one, and not the first")
    assert running.kept.values() == [topic.sent["1"]]


@pytest.mark.parametrize("qos", [1, 2])
def test_dead_letters_are_acknowledged_in_order(mosquitto: Mosquitto, version: str, qos: int) -> None:
    """MQTT requires acknowledgements in the order in which messages came (4.6.0)."""
    topic = topic_on(mosquitto, version=version, qos=qos)
    source = topic.source(max_record_bytes=100)
    for value in (b"y" * 100, b"x" * 101):
        topic.publish(value)
    for _ in range(2):
        with Running(source, Kept(registers=False)) as running:
            eventually(lambda: len(running.kept.rows) == len(running.kept.letters) == 1, "both")
    with Running(source) as running:
        eventually(lambda: len(running.kept.rows) == len(running.kept.letters) == 1, "both")
    topic.send(1)
    with Running(source) as running:
        eventually(lambda: running.kept.rows, "the third one")
    assert running.kept.values() == [topic.sent["0"]]
    assert not running.kept.letters


def test_x11_restarts_leave_no_client_behind(mosquitto: Mosquitto, version: str) -> None:
    """Check what the original got wrong: `onStop` was empty, each restart left a connected client that kept storing."""
    topic = topic_on(mosquitto, version=version)
    process = psutil.Process()
    with Running(topic.source()) as running:
        running.wait_until_connected()
        # Sockets that an earlier test left to the garbage collector are closed now, and not while this one counts.
        gc.collect()
        before = len(process.net_connections("tcp")), process.num_fds(), threading.active_count()
        for times in range(2, 7):
            running.receiver.on_stop()
            running.receiver.on_start()
            running.wait_until_connected(times)
        after = len(process.net_connections("tcp")), process.num_fds(), threading.active_count()
        assert after == before
        running.receiver.on_stop()
        running.receiver.on_stop()
        topic.send(3)
        assert running.kept.rows == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mqtt ")]


def test_pings_go_on_and_nothing_is_acknowledged_while_blocks_can_not_be_registered(
    mosquitto: Mosquitto, version: str
) -> None:
    topic = topic_on(mosquitto, version=version)
    kept = Kept()
    # In seconds; large enough for a ping that is some seconds late on a busy machine.
    with Running(topic.source(keepalive=6), kept) as running:
        running.wait_until_connected()
        kept.gate.clear()
        topic.send(10)
        # The broker drops a client after 1.5 keepalives without a packet.
        assert not threading.Event().wait(10)
        assert kept.restarts == []
        assert kept.rows == []
        kept.gate.set()
        eventually(lambda: len(kept.rows) == 10, "ten messages")
    assert kept.restarts == []
    assert len(kept.connected) == 1


def test_qos_0_without_room_is_dropped_counted_and_reported(mosquitto: Mosquitto) -> None:
    topic = topic_on(mosquitto, qos=0, primed=False)
    kept = Kept(ReceiverSettings(block_interval=0.05, max_block_bytes=2048))
    with Running(topic.source(keepalive=6), kept) as running:
        running.wait_until_connected()
        kept.gate.clear()
        for number in range(200):
            topic.publish(b"%d" % number)
        eventually(lambda: running.reader._dropped, "messages without room")
        kept.gate.set()
        eventually(lambda: kept.errors, "what was dropped")
        dropped = int(kept.errors[0].split()[0])
        assert "messages of QoS 0 were dropped" in kept.errors[0]
        eventually(lambda: len(kept.rows) + dropped == 200, "each message, stored or counted")
    assert dropped > 0
    assert kept.restarts == []


def test_qos_1_without_room_is_left_for_redelivery(mosquitto: Mosquitto, version: str) -> None:
    """Check it because not every broker respects the limit of messages in flight."""
    topic = topic_on(mosquitto, version=version, keyed=False)
    kept = Kept(ReceiverSettings(block_interval=0.05, max_block_bytes=2048))
    with Running(topic.source(keepalive=6), kept) as running:
        running.wait_until_connected()
        kept.gate.clear()
        topic.send(15)
        eventually(lambda: running.reader._left_out, "messages without room")
        kept.gate.set()
        running.restart_when_asked()
        eventually(lambda: len(kept.rows) >= 15, "all of them")
    assert sorted(kept.values()) == sorted(topic.sent.values())
    assert kept.restarts == ["the MQTT broker sent more than there was room for: it is asked to send that again"]


def test_columns_and_keys_of_mqtt_5(mosquitto: Mosquitto) -> None:
    topic = topic_on(mosquitto)
    source = topic.source(topics=[f"{topic.name}/+/a", f"{topic.name}/b/#"], key="correlation_data")
    with Running(source) as running:
        running.wait_until_connected()
        properties = {
            "ContentType": "text/plain",
            "ResponseTopic": "answers",
            "CorrelationData": b"\0\xff",
            "UserProperty": ("k", "ü"),
        }
        topic.publish(b"1", topic=f"{topic.name}/x/a", properties=properties)
        topic.publish(b"", topic=f"{topic.name}/b/c/d")
        topic.publish(b"no", topic=f"{topic.name}/x/c")
        eventually(lambda: len(running.kept.rows) == 2, "two of three")
    assert running.kept.rows == [
        {
            "topic": f"{topic.name}/x/a",
            "value": b"1",
            "qos": 1,
            "retain": False,
            "content_type": "text/plain",
            "response_topic": "answers",
            "correlation_data": b"\0\xff",
            "user_properties": [{"key": "k", "value": "ü"}],
        },
        {
            "topic": f"{topic.name}/b/c/d",
            "value": b"",
            "qos": 1,
            "retain": False,
            "content_type": None,
            "response_topic": None,
            "correlation_data": None,
            "user_properties": None,
        },
    ]
    assert running.kept.keys == ["00ff", None]


def test_overlapping_filters_each_deliver_the_message_with_mqtt_5(mosquitto: Mosquitto, version: str) -> None:
    """Check what the page says of mosquitto; with its key the message is stored once."""
    topic = topic_on(mosquitto, version=version, primed=False)
    with Running(topic.source(topics=[f"{topic.name}/#", f"{topic.name}/b"])) as running:
        running.wait_until_connected()
        topic.publish(b'{"id": "1"}', "1", topic=f"{topic.name}/b")
        topic.publish(b'{"id": "2"}', "2", topic=f"{topic.name}/c")
        eventually(lambda: running.kept.keys[-1:] == ["2"], "both")
    assert running.kept.keys == (["1", "1", "2"] if version == "5" else ["1", "2"])


def test_retained_messages_come_with_a_new_subscription(mosquitto: Mosquitto, version: str) -> None:
    topic = topic_on(mosquitto, version=version, primed=False)
    topic.publish(b"kept", retain=True)
    topic.wait_until_published()
    with Running(topic.source()) as running:
        eventually(lambda: running.kept.rows, "the retained message")
        topic.publish(b"new")
        eventually(lambda: len(running.kept.rows) == 2, "the next one")
    assert [(row["value"], row["retain"]) for row in running.kept.rows] == [(b"kept", True), (b"new", False)]


def test_a_too_large_payload_becomes_a_dead_letter_and_blocks_nothing(mosquitto: Mosquitto, version: str) -> None:
    topic = topic_on(mosquitto, version=version)
    with Running(topic.source(max_record_bytes=100)) as running:
        topic.publish(b"x" * 101)
        topic.publish(b"y" * 100)
        eventually(lambda: running.kept.rows, "the second one")
        eventually(lambda: running.kept.letters, "the first one, aside")
    assert [(letter.reason.label, len(letter.data)) for letter in running.kept.letters] == [("record_too_large", 101)]
    assert running.kept.values() == [b"y" * 100]
    topic.send(1)
    with Running(topic.source()) as again:
        eventually(lambda: again.kept.rows, "a third one")
    assert again.kept.values() == [topic.sent["0"]]


@pytest.mark.parametrize("qos", [1, 2])
def test_properties_that_paho_rejects_block_nothing(mosquitto: Mosquitto, qos: int) -> None:
    """Send a byte order mark, as some senders put before their text."""
    topic = topic_on(mosquitto, qos=qos)
    with Running(topic.source()) as running:
        running.wait_until_connected()
        topic.publish(b"marked", "\ufeff1", properties={"ContentType": "\ufefftext"})
        topic.send(1)
        eventually(lambda: len(running.kept.rows) == 2, "both")
    assert running.kept.values() == [b"marked", topic.sent["0"]]
    assert running.kept.keys == ["\ufeff1", "0"]
    assert running.kept.rows[0]["content_type"] == "\ufefftext"
    assert not running.kept.restarts
    with Running(topic.source()) as again:
        again.wait_until_connected()
        topic.send(1)
        eventually(lambda: again.kept.rows, "the third one")
    assert again.kept.values() == [topic.sent["1"]]


def test_several_receivers_share_the_messages(mosquitto: Mosquitto, version: str) -> None:
    topic = MqttTopic(mosquitto, version=version, shared=True, primed=False)
    first, second = Kept(receiver_id=1), Kept(receiver_id=2)
    with Running(topic.source(), first) as one, Running(topic.source(), second) as other:
        one.wait_until_connected()
        other.wait_until_connected()
        topic.send(100)
        eventually(lambda: len(first.rows) + len(second.rows) == 100, "100 messages")
    assert first.rows
    assert second.rows
    assert sorted([*first.values(), *second.values()]) == sorted(topic.sent.values())


def test_a_session_lost_by_the_broker_is_reported(mosquitto: Mosquitto, version: str, tmp_path: Path) -> None:
    topic = topic_on(mosquitto, version=version)
    with Running(topic.source()) as running:
        running.wait_until_connected()
        mosquitto.kill()
        for path in (tmp_path / "mosquitto" / "data").iterdir():
            path.unlink()
        mosquitto.start()
        running.restart_when_asked()
        running.wait_until_connected(2)
        [said] = running.kept.errors
        assert said.startswith(f"the MQTT broker has lost the session of {topic.name}-1")
        topic.send(3)
        eventually(lambda: len(running.kept.rows) == 3, "what comes from then on")


@pytest.mark.parametrize("qos", [0, 1])
def test_a_session_that_is_gone_when_another_process_starts_is_reported(
    mosquitto: Mosquitto, version: str, tmp_path: Path, qos: int
) -> None:
    topic = topic_on(mosquitto, version=version, primed=False)
    first = Kept()
    with Running(topic.source(qos=qos, key=None), first) as running:
        running.wait_until_connected()
        eventually(lambda: first.links, "the mark")
    assert not first.errors
    mosquitto.kill()
    for path in (tmp_path / "mosquitto" / "data").iterdir():
        path.unlink()
    mosquitto.start()
    # Another process has only the driver log. At QoS 0 there is never a session.
    for expected in (1, 0 if qos else 1):
        again = Kept(links=first.links)
        with Running(topic.source(qos=qos, key=None), again) as running:
            running.wait_until_connected()
        assert len(again.errors) == expected
        assert all("unknown size" in said and ("at qos=0" in said) is not bool(qos) for said in again.errors)


def test_a_session_that_is_taken_over_is_left_to_the_other_until_a_restart(mosquitto: Mosquitto, version: str) -> None:
    topic = topic_on(mosquitto, version=version)
    with Running(topic.source()) as running:
        running.wait_until_connected()
        topic.prime(1)
        eventually(lambda: running.kept.restarts, "a restart request")
        topic.send(3)
        assert running.kept.rows == []
        running.restart_when_asked()
        eventually(lambda: len(running.kept.rows) == 3, "what was published meanwhile")


def test_an_unavailable_broker_causes_a_restart(mosquitto: Mosquitto) -> None:
    topic = topic_on(mosquitto)
    topic.close()
    mosquitto.stop()
    with Running(topic.source()) as running:
        eventually(lambda: running.kept.restarts, "a restart request")
        mosquitto.start()
        running.restart_when_asked()
        running.wait_until_connected()
    assert running.kept.restarts == ["the MQTT broker can't be reached"]


def test_tls_and_a_password_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    authority = Authority(tmp_path / "ca")
    certificate = authority.issue("broker.example", address="192.0.2.1")
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(passwords), "forebay", "hunter2"], check=True, timeout=120)
    settings = {
        "allow_anonymous": "false",
        "password_file": passwords,
        "cafile": authority.ca_file,
        "certfile": certificate.certificate_file,
        "keyfile": certificate.key_file,
    }
    broker = Mosquitto(tmp_path / "mosquitto", settings)
    broker.start()
    try:
        topic = topic_on(broker, version=version, publishes=False)
        given: dict[str, Any] = {
            "tls": Tls(ca_file=authority.ca_file, server_hostname="broker.example"),
            "username": "forebay",
            "password": "env:MQTT_TEST_PASSWORD",
        }
        monkeypatch.setenv("MQTT_TEST_PASSWORD", "hunter2")
        with Running(topic.source(**given)) as running:
            running.wait_until_connected()
        monkeypatch.setenv("MQTT_TEST_PASSWORD", "wrong")
        with Running(topic.source(**given)) as running:
            eventually(lambda: running.kept.restarts, "a refusal")
        assert "refused the connection: " in running.kept.restarts[0]
        assert "uthor" in running.kept.restarts[0] or "password" in running.kept.restarts[0]
        for tls in (Tls(ca_file=authority.ca_file), True):
            with Running(topic.source(**{**given, "tls": tls})) as running:
                eventually(lambda: running.kept.restarts, "the client's refusal")
            assert running.kept.restarts == ["the MQTT broker can't be reached"]
    finally:
        broker.close()


def test_a_lower_granted_qos_is_reported(tmp_path: Path, version: str) -> None:
    broker = Mosquitto(tmp_path / "mosquitto", {"max_qos": 0})
    broker.start()
    try:
        topic = topic_on(broker, version=version, publishes=False)
        with Running(topic.source()) as running:
            running.wait_until_connected()
        assert running.kept.errors == [f"the MQTT broker grants QoS 0 for {topic.name!r} where 1 was asked for"]
    finally:
        broker.close()


class FloodingBroker:
    """A broker that sends QoS 0 messages without end and reads everything, until its client closes."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(60)
        self.port: int = self.listener.getsockname()[1]
        self.read = bytearray()
        self.failure: OSError | None = None
        self.thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.join(60)
        self.listener.close()
        assert not self.thread.is_alive()

    def _serve(self) -> None:
        connection, _ = self.listener.accept()
        connection.settimeout(60)
        with connection:
            connection.recv(1000)
            # CONNACK; SUBACK of the first subscription, whose packet id is 1; a message of QoS 1, whose id is 7.
            connection.sendall(b"\x20\x02\x00\x00" + b"\x90\x03\x00\x01\x01" + b"\x32\x06\x00\x01a\x00\x07x")
            flood = threading.Thread(target=self._flood, args=(connection,))
            flood.start()
            try:
                while got := connection.recv(65_536):
                    self.read += got
            except OSError as error:
                self.failure = error
            # End the flood.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            flood.join(60)

    def _flood(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(b"\x30\x04\x00\x01ay" * 1000)


def test_a_stop_delivers_every_acknowledgement_while_messages_still_arrive() -> None:
    """Read all first: closing a socket with unread bytes resets it, and the broker may then lose what came before."""
    with FloodingBroker() as broker:
        source = Mqtt(host="127.0.0.1", port=broker.port, topics=("a",), version="3.1.1", client_id="c")
        with Running(source) as running:
            eventually(lambda: running.kept.rows, "messages")
    assert broker.failure is None
    # PUBACK of 7, and DISCONNECT at the end.
    assert b"\x40\x02\x00\x07" in broker.read
    assert broker.read.endswith(b"\xe0\x00")


def test_a_refused_subscription_and_a_session_taken_over_are_named() -> None:
    """Call the reader with answers that a broker may send; mosquitto 2.0.11 sends neither."""
    source = Mqtt(host="127.0.0.1", topics=("a/#",), client_id="c")
    running = Running(source)
    reader = mqtt_reader.MqttReader(running.receiver, source, MqttSession())
    refused = ReasonCode(PacketTypes.SUBACK, identifier=0x87)
    with pytest.raises(ConnectionError, match="refused the subscription to 'a/#': Not authorized"):
        reader._answers.on_subscribe(None, None, 1, [refused], None)
    taken = ReasonCode(PacketTypes.DISCONNECT, identifier=0x8E)
    reader._answers.on_disconnect(None, None, DisconnectFlags(is_disconnect_packet_from_server=True), taken, None)
    assert (
        "Session taken over: another client uses the client id c-1, give each stream its own"
        in reader._answers.words(connected=True)
    )
    reader._close()
