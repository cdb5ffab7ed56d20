"""Check the page on logs of containers: its declarations are valid, its tables complete, its lines are read."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic_core import PydanticUndefined

from forebay import Stream
from forebay_contrib.container_logs.declaration import ContainerLogs
from forebay_contrib.container_logs.tests.test_joiner import read
from receiver_runtime.process.receiver_registry import make_receiver

PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_its_declarations_are_valid() -> None:
    found = []
    for declaration in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        names: dict[str, object] = {}
        exec(declaration, names)
        found += [value for value in names.values() if isinstance(value, Stream)]
    for stream in found:
        make_receiver(stream.source)
    assert [stream.name for stream in found] == ["pods", "docker", "orders"]


def test_its_lines_are_read() -> None:
    section = PAGE.split("\n## Which lines are read\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\| (?:CRI|Docker) \| `([^`]+)`", section, re.MULTILINE)
    rows, letters = read("\n".join([*lines, ""]).encode(), None, longest=4000, nbytes=5000, most=10, cuts=[])
    assert [(row["value"], row["time_unix_nano"] % 10**9) for row in rows] == [("text", 123456789)] * 2
    assert not letters


def test_its_tables_name_every_column_and_field() -> None:
    section = PAGE.split("\n## Columns\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [name for name, _ in ContainerLogs.columns]
    text = PAGE.split("\n| field | default |")[1]
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]*?)`? \|", text, re.MULTILINE))
    fields = {name: field.default for name, field in ContainerLogs.model_fields.items() if name != "kind"}
    assert rows == {
        name: "required" if default is PydanticUndefined else repr(default) for name, default in fields.items()
    }
