"""Test the page on AMQP: its declaration is valid, its table of fields is complete, and its statement runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from forebay import Stream
from forebay_contrib.amqp.declaration import Amqp
from tests.support.driver_log.log import make_log
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    import pytest

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return str(found)


def test_its_declaration_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_PASSWORD", "hunter2")
    names: dict[str, object] = {}
    exec(block("python"), names)
    stream = names["orders"]
    assert isinstance(stream, Stream)
    assert isinstance(stream.source, Amqp)
    assert stream.source.password is not None
    assert stream.source.password.resolve() == "hunter2"


def test_its_statement_runs(engine: sa.Engine) -> None:
    with connect(engine) as connection:
        make_log(connection, stream="orders")
        assert connection.execute(sa.text(block("sql"))).all() == []


def test_its_table_names_every_field() -> None:
    section = TEXT.split("\n## Fields\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if line[:3] == "| `"
    ]
    wanted = {name: field for name, field in Amqp.model_fields.items() if name != "kind"}
    assert [row[0].strip("`") for row in rows] == list(wanted)
    for name, shown, _ in rows:
        if shown != "required":
            assert ast.literal_eval(shown.strip("`")) == wanted[name.strip("`")].default
    for name, _ in Amqp.columns:
        assert f"`{name}`" in TEXT
