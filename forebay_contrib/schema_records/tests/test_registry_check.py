"""Test what `forebay validate` and `forebay doctor` say of a stream's schema registry."""

from __future__ import annotations

import json
import socket
import textwrap
import threading
import time
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from forebay.cli.checks.source_checks import check_registries
from forebay.cli.commands.doctor import examine
from forebay.cli.main import app
from forebay_contrib.schema_records.avro import Avro
from orchestration.declarations.apply import apply
from orchestration.declarations.modules import load_pipelines
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.sources.fields.schema_registry import Registry
from receiver_runtime.sources.records.json_records import Json
from tracker_store.blocks.stream_schemas import register_schema
from tracker_store.connection.engine import connect
from tracker_store.receivers.receivers import placements

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa

    from receiver_runtime.sources.records.declared import Records
    from receiver_runtime.sources.source import Source
    from tests.support.servers.schema_registry import RegistryServer

KAFKA = Kafka(bootstrap_servers="127.0.0.1:1", topics=["paid"], group="g")


def schema(**types: object) -> dict[str, object]:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"schema": json.dumps({"type": "record", "name": "Order", "fields": fields})}


def said(records: Records, source: Source = KAFKA, **columns: str) -> list[tuple[str, str, str]]:
    return [
        (str(finding.health), finding.found, finding.way_out)
        for finding in check_registries("stream paid", source, records, columns.items())
    ]


def test_a_registry_whose_schemas_fit_is_well(server: RegistryServer) -> None:
    server.register("paid-value", schema(item="string", pieces="int"))
    server.register("paid-key", schema(id="long"))
    registry = Registry(server.url)
    found = said(Avro(registry=registry, key=Avro(registry=registry)), item="string", pieces="int64", _key_id="int64")
    assert [(health, words.split(" has ")[0]) for health, words, _ in found] == [
        ("ok", "subject paid-value"),
        ("ok", "subject paid-key"),
    ]


def test_each_subject_that_does_not_fit_is_named_with_the_column(server: RegistryServer) -> None:
    server.register("paid-value", schema(item="long"))
    server.register("paid-key", {"schema": "{}", "schemaType": "JSON"})
    registry = Registry(server.url)
    value, key = said(Avro(registry=registry, key=Avro(registry=registry)), Item="int64", item="string")
    assert value[0] == key[0] == "failed"
    assert value[1] == "subject paid-value: its newest schema: item is int64, and the stream has string"
    assert key[1] == "subject paid-key: its newest schema is JSON, and the stream's records are AVRO"
    assert "declare a stream of its own" in value[2]


def test_a_subject_that_is_not_there_is_a_warning_because_records_name_their_schemas(server: RegistryServer) -> None:
    [(health, found, way_out)] = said(Avro(registry=Registry(server.url)))
    assert (health, found) == ("warning", "the schema registry has no subject paid-value: Subject not found")
    assert "other names" in way_out


def test_a_source_without_subjects_asks_whether_the_registry_answers(server: RegistryServer) -> None:
    records = Avro(registry=Registry(server.url))
    pattern = Kafka(bootstrap_servers="127.0.0.1:1", pattern="paid.*", group="g")
    for source in (Http(listen="127.0.0.1:0"), pattern):
        assert said(records, source) == [("ok", f"the schema registry {server.url} answers", "")]
    assert server.requests == ["/schemas/types"] * 2


@pytest.mark.parametrize("source", [KAFKA, Http(listen="127.0.0.1:0")], ids=lambda source: source.kind)
@pytest.mark.parametrize(
    ("status", "field"), [(401, "its login"), (403, "its login"), (404, "its url"), (503, "its url")]
)
def test_a_registry_that_refuses_is_named_with_the_field_to_correct(
    server: RegistryServer, source: Source, status: int, field: str
) -> None:
    server.fails = status
    [(health, found, way_out)] = said(Avro(registry=Registry(server.url)), source)
    assert (health, f"answered {status}" in found, f"Correct {field}" in way_out) == ("failed", True, True)


def test_a_registry_that_is_not_there_is_named() -> None:
    [(health, found, way_out)] = said(Avro(registry=Registry("http://127.0.0.1:1")))
    assert health == "failed"
    assert "http://127.0.0.1:1 does not answer" in found
    assert "its url" in way_out


def test_a_secret_that_is_not_set_here_is_a_warning_and_nothing_is_asked(server: RegistryServer) -> None:
    records = Avro(registry=Registry(server.url, token="env:NO_SUCH_SECRET"))
    [(health, found, _)] = said(records)
    assert (health, "NO_SUCH_SECRET is not set" in found, server.requests) == ("warning", True, [])


def test_a_registry_that_drips_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not over.wait(0.05):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        began = time.monotonic()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        [(health, found, _)] = said(Avro(registry=Registry(url, timeout=0.3)))
        over.set()
        thread.join(20)
    assert (health, "takes longer than the timeout" in found) == ("failed", True)
    assert time.monotonic() - began < 10


def test_records_without_a_registry_ask_nothing() -> None:
    assert said(Json("item STRING")) == []


def test_validate_and_doctor_compare_the_registry_with_the_columns_that_the_stream_has(
    server: RegistryServer, home: Path, engine: sa.Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.chdir(home)
    server.register("paid-value", schema(item="long"))
    path = home / "paid_orders.py"
    code = f"""
        from forebay import ParquetSink, Pipeline, Stream
        from forebay.records import Avro, Registry
        from forebay.sources import Kafka

        kafka = Kafka(bootstrap_servers="127.0.0.1:1", topics=["paid"], group="g")
        paid = Stream("paid", kafka, records=Avro(registry=Registry("{server.url}")))
        sales = Pipeline("sales", interval="10s")
        sales.output(inputs=[paid], sink=ParquetSink({str(home / "out")!r}), name="all")(lambda paid: paid)
    """
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    with connect(engine) as connection:
        apply(connection, load_pipelines(str(path)))
        [receiver] = placements(connection)
        register_schema(connection, receiver_id=receiver.receiver_id, fingerprint="1", columns=[("item", "string")])
    why = "subject paid-value: its newest schema: item is int64, and the stream has string"
    done = CliRunner().invoke(app, ["validate", "--json", "--no-plans", str(path)])
    validated = [(one["health"], one["found"]) for one in json.loads(done.stdout)["findings"]]
    assert ("failed", why) in validated
    assert ("failed", why) in [(str(finding.health), finding.found) for finding in examine()]
    # No registry is asked without the network.
    asked = len(server.requests)
    CliRunner().invoke(app, ["validate", "--offline", "--json", "--no-plans", str(path)])
    assert len(server.requests) == asked
