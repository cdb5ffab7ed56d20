"""Check the page: what its stream receives becomes the columns of a block."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro

from forebay import Stream
from receiver_runtime.sources.records.registry import parse_records
from tests.integration.receiver_runtime.applied_stream import applied, post, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def examples() -> Iterator[dict[str, Any]]:
    for example in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        names: dict[str, Any] = {}
        exec(example.replace(":8080", ":0"), names)
        yield names


def test_what_the_first_stream_receives_is_columns(database_url: str, tmp_path: Path) -> None:
    names = next(examples())
    orders = names["orders"]
    assert isinstance(orders, Stream)
    rig = applied(database_url, tmp_path, orders)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(names["ORDER"]), {"item": "tea", "pieces": 2, "at": 1})
    try:
        rig.start()
        url = url_of(rig, "orders")
        assert post(url, out.getvalue()) == (200, "")
        status, why = post(url, b"\x06te")
        assert (status, "no Avro" in why) == (422, True)
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
