"""The page on MQTT: its declarations are good ones, and its table is the fields."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from forebay import Stream
from receiver_runtime.sources.mqtt import Mqtt

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "sources" / "mqtt.md").read_text(encoding="utf-8")
DECLARATIONS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_there_are_two_declarations() -> None:
    assert len(DECLARATIONS) == 2


@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_the_declarations_are_good(declaration: str) -> None:
    names: dict[str, object] = {}
    exec(compile(declaration, "mqtt.md", "exec"), names)
    [stream] = [value for value in names.values() if isinstance(value, Stream)]
    assert isinstance(stream.source, Mqtt)


def test_the_table_is_the_fields() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]*?)`? \|", PAGE, re.MULTILINE))
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in Mqtt.model_fields.items()
        if name != "kind"
    }
    assert rows == {
        name: "required" if default is PydanticUndefined else repr(default) for name, default in defaults.items()
    }


def test_the_columns_are_named() -> None:
    assert [name for name, _ in Mqtt.columns if f"`{name}`" not in PAGE] == []
