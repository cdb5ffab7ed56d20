"""Test typed keys of Kafka: a key that does not fit is a dead letter, whose replay keeps the key. ``make kafka``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.testing.receiver_processes import eventually
from receiver_runtime.sources.records.json_records import Json
from tests.conformance.kafka_source import KafkaTopic
from tests.support.driver_log.declared_records import declare_records
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forebay.testing.source_rig import SourceRig
    from tests.support.brokers.kafka import AnyKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


def test_a_replay_of_a_record_whose_key_did_not_fit_keeps_its_key_and_position(
    any_kafka: AnyKafka,
    make_rig: Callable[..., SourceRig],
    database_url: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = KafkaTopic(any_kafka)
    strict = Json("pieces BIGINT", key=Json("customer BIGINT"), keep=["_offset"])
    rig = make_rig(topic.source(), records=strict)
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", str(rig.root / "blocks"))
    good, bad = (b'{"customer": 7}', b'{"pieces": 1}'), (b'{"customer": "8"}', b'{"pieces": 2}')
    topic.send_pairs([good, bad, good], partition=0)
    process = rig.start()
    eventually(lambda: (rig.registered(), rig.dead_letters()) == (2, 1), "the records, and the other one", seconds=60)
    [(number,)] = rig.execute("SELECT id FROM forebay.dead_letters WHERE part = 0")
    text = CliRunner().invoke(app, ["dead-letters", "show", str(number)]).output
    assert 'key {"customer": "8"}, record {"pieces": 2}' in text
    assert "key: Expected `int | null`, got `str` - at `$.customer`" in text
    with connect(rig.engine) as connection:
        declare_records(
            connection, Json("pieces BIGINT", key=Json("customer BIGINT", coerce="numbers"), keep=["_offset"])
        )
    assert "it fits by now" in CliRunner().invoke(app, ["dead-letters", "show", str(number)]).output
    rig.execute("UPDATE forebay.dead_letters SET replay_wanted = true")
    process.terminate()
    process.wait(60)
    rig.start(assignment=2)
    eventually(lambda: rig.registered() == 3, "the replayed record", seconds=60)
    rows = sorted(rig.rows(), key=lambda row: int(row["_offset"]))
    assert [tuple(row.values()) for row in rows] == [(1, 7, 0), (2, 8, 1), (1, 7, 2)]
    assert rig.failed_checks() == []
