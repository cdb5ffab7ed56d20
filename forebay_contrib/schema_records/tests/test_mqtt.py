"""Test Avro of a schema file on MQTT: poison beside records that fit, and a kill. ``make brokers``."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import fastavro
import pytest

from forebay.testing.receiver_processes import eventually
from forebay_contrib.mqtt.tests.mqtt_source import MqttTopic
from forebay_contrib.schema_records.avro import Avro
from tests.support.brokers.mosquitto import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from forebay.testing.source_rig import SourceRig

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(240)]
FIELDS = [{"name": "n", "type": "long"}, {"name": "at", "type": "string"}]
SCHEMA = {"type": "record", "name": "Reading", "fields": FIELDS}
POISON = [b"", b"\x02", b"\x02\x06te", b"\x02\x04a\xff", b"\x02\x02a\x00"]


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    made = Mosquitto(tmp_path / "mosquitto")
    made.start()
    yield made
    made.close()


def test_readings_become_rows_once_and_poison_is_kept_aside_also_across_a_kill(
    mosquitto: Mosquitto, make_rig: Callable[..., SourceRig], tmp_path: Path
) -> None:
    file = tmp_path / "reading.avsc"
    file.write_text(json.dumps(SCHEMA), encoding="utf-8")
    topic = MqttTopic(mosquitto, shared=False)
    rig = make_rig(topic.source(), records=Avro(file, keep=["_topic"]))
    sent: list[dict[str, object]] = []
    letters = 0

    def send(readings: int) -> None:
        for _ in range(readings):
            sent.append({"n": len(sent), "at": "Bonn"})
            out = io.BytesIO()
            fastavro.schemaless_writer(out, SCHEMA, sent[-1])
            topic.publish(out.getvalue(), str(len(sent)))

    def all_came() -> bool:
        return rig.registered() >= len(sent) and rig.dead_letters() >= letters

    process = rig.start()
    for number in range(6):
        send(50)
        if number == 3:
            process.kill()
            process.wait(60)
        for poison in POISON:
            letters += 1
            topic.publish(poison, f"poison {letters}")
        if number == 4:
            process = rig.start(assignment=2)
    topic.wait_until_published()
    eventually(all_came, "what was sent", seconds=90)
    assert sorted(rig.rows(), key=lambda row: int(row["n"])) == [{**row, "_topic": topic.name} for row in sent]
    assert rig.failed_checks() == []
