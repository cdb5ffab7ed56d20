"""Test the page on Fluent Forward: its declarations are valid, its sender stores rows, and its tables name all."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

from forebay import Stream
from forebay_contrib.fluent_forward.declaration import FluentForward
from forebay_contrib.fluent_forward.tests.test_receiver import port_of, rows
from receiver_runtime.process.receiver_registry import make_receiver
from tests.unit.receiver_runtime.receivers.test_keyed_hand_over import KeyedBlockLog
from tests.unit.receiver_runtime.rig import rig

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

PAGE = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def table(heading: str) -> Sequence[Sequence[str]]:
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:3] == "| `"]


def declared(example: str) -> FluentForward:
    names: dict[str, object] = {}
    exec(example, names)
    [source] = [value.source for value in names.values() if isinstance(value, Stream)]
    assert isinstance(source, FluentForward)
    return source


def test_its_sender_stores_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARD_KEY", "sesame")
    first, typed, secured = map(declared, blocks("python"))
    assert typed.listen_address[1] == 24225
    assert (secured.shared_key[0].resolve(), set(secured.users)) == ("sesame", {"web"})
    [sender] = blocks("python run")
    source = first.model_copy(update={"listen": "127.0.0.1:0"})
    with rig(tmp_path, make_receiver(source), log=KeyedBlockLog()) as made:
        exec(sender.replace("24224", str(port_of(made))), {})
        found = [(row["tag"], row["record"]) for row in rows(made)]
    assert found == [("app.log", f'{{"message":"hello {number}"}}') for number in (1, 2)]


def test_its_tables_name_every_column_and_every_field() -> None:
    columns = [name for row in table("Columns") for name in re.findall(r"`(\w+)`", row[0])]
    assert columns == [name for name, _ in FluentForward.columns]
    fields = {row[0].strip("`"): row[1].strip("`") for row in table("Fields")}
    wanted = {name: field for name, field in FluentForward.model_fields.items() if name != "kind"}
    assert list(fields) == list(wanted)
    for name, field in wanted.items():
        if fields[name] != "required":
            assert ast.literal_eval(fields[name]) == field.get_default(call_default_factory=True)
