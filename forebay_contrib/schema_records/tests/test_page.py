"""Check the page: what its stream receives becomes the columns of a block."""

from __future__ import annotations

import io
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from forebay import Stream
from forebay.testing.receiver_processes import eventually
from receiver_runtime.sources.records.registry import parse_records
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect, create_engine
from tracker_store.receivers.receivers import placements

if TYPE_CHECKING:
    from collections.abc import Iterator

AVRO = {"Content-Type": "application/avro"}
PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def examples() -> Iterator[dict[str, Any]]:
    for example in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        names: dict[str, Any] = {}
        exec(example.replace(":8080", ":0"), names)
        yield names


def applied(database_url: str, root: Path, stream: Stream) -> ReceiverRig:
    """Return a rig of the stream's one receiver."""
    engine = create_engine(database_url, application_name="tests")
    with connect(engine) as connection:
        apply_stream(connection, name=stream.name, declaration=stream.declaration(), receivers=1)
        [placement] = placements(connection)
    rig = ReceiverRig(database_url, root, engine, placement.receiver_id)
    rig.assign(1)
    return rig


def test_what_the_first_stream_receives_is_columns(database_url: str, tmp_path: Path) -> None:
    names = next(examples())
    orders = names["orders"]
    assert isinstance(orders, Stream)
    rig = applied(database_url, tmp_path, orders)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(names["ORDER"]), {"item": "tea", "pieces": 2, "at": 1})
    try:
        rig.start()
        eventually(lambda: "listening on" in rig.state()[1], "listening")
        address = rig.state()[1].partition("listening on ")[2].split()[0]
        url = f"http://{address}/v1/orders"
        with urllib.request.urlopen(urllib.request.Request(url, out.getvalue(), AVRO), timeout=60) as answer:
            assert json.loads(answer.read())["records"] == 1
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, b"\x06te", AVRO), timeout=60)
        assert refused.value.code == 422
        assert "no Avro" in json.loads(refused.value.read())["detail"]
        assert rig.dead_letters() == [("unparsable", b"\x06te")]
        assert rig.values() == ["tea"]
    finally:
        rig.close()


def test_declarations_of_the_page_are_stored_and_read_back() -> None:
    for names in examples():
        for stream in names.values():
            if isinstance(stream, Stream):
                assert stream.records is not None
                assert parse_records(stream.records.model_dump(mode="json")) == stream.records
