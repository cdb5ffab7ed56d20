from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from receiver_runtime.receivers.custom.declaration import CustomSource
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.sources.source import Guarantee, SourceRule
from receiver_runtime.sources.source_registry import parse_source, source_class, source_kinds
from tests.unit.receiver_runtime.sources.least_declarations import LEAST

# The guarantees that each rule (what a sender does after a crash) allows.
FITTING = {
    SourceRule.NOT_SENT_AGAIN: {Guarantee.AT_MOST_ONCE},
    SourceRule.SENT_AGAIN: {Guarantee.AT_LEAST_ONCE, Guarantee.AT_LEAST_ONCE_DEDUPLICATED},
    SourceRule.OFFSETS: {Guarantee.EXACTLY_ONCE},
}


@pytest.mark.parametrize("kind", source_kinds())
def test_each_kind_has_a_guarantee_that_fits_its_rule(kind: str) -> None:
    # Their blocks that are acknowledged after registration have their own rule (``push_keyed``).
    is_keyed = kind in {"http", "fluent_forward"}
    rule = SourceRule.SENT_AGAIN if is_keyed else parse_source({"kind": kind, **LEAST[kind]}).source_rule
    assert source_class(kind).guarantees()[0] in FITTING[rule]


def test_kafka_guarantees_what_its_declaration_asks_for() -> None:
    assert Kafka.guarantees() == (Guarantee.EXACTLY_ONCE, Guarantee.AT_MOST_ONCE)
    strict = Kafka(bootstrap_servers="a:1", topics="t", group="g")
    assert Guarantee(strict.guarantee) is Guarantee.EXACTLY_ONCE
    loose = Kafka(bootstrap_servers="a:1", topics="t", group="g", guarantee="at_most_once")
    assert Guarantee(loose.guarantee) is Guarantee.AT_MOST_ONCE


def test_forebay_sources_shows_the_guarantees_as_json() -> None:
    done = CliRunner().invoke(app, ["sources", "--json"])
    assert done.exit_code == 0, done.output
    shown = {kind["kind"]: kind for kind in json.loads(done.output)["sources"] if kind["receiver"] is None}
    assert shown.keys() == set(source_kinds())
    assert shown["kafka"]["guarantee"] == "exactly once"
    assert shown["kafka"]["guarantees"] == ["exactly once", "at most once"]
    for kind in ("socket_text", "raw_socket"):
        assert shown[kind]["guarantees"] == ["at most once"]
    # Its guarantee is that of the user's class.
    assert shown["custom"]["guarantee"] is None
    assert CustomSource.guarantee is Guarantee.AT_MOST_ONCE
    assert Guarantee.AT_LEAST_ONCE_DEDUPLICATED.words == "at least once, deduplicated"


def test_forebay_sources_shows_the_guarantees_as_text() -> None:
    done = CliRunner().invoke(app, ["sources"], env={"COLUMNS": "400"})
    said: dict[str, str] = {}
    kind = ""
    for line in done.output.splitlines():
        if line[:1].strip():
            kind = line.partition(":")[0]
        elif line.strip().startswith("guarantee"):
            said[kind] = line.split(maxsplit=1)[1].strip()
    assert said["kafka"] == "exactly once; or at most once"
    assert said["socket_text"] == "at most once"
    assert said["custom"] == "the receiver's"
