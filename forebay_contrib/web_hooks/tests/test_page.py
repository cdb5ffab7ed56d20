"""Test the page on web hooks: its declarations are valid, its commands get their answers, its tables are complete."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic_core import PydanticUndefined

from forebay import EnvVar, Stream, web_hooks
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.sources.fields.hmac_signature import Hmac
from receiver_runtime.sources.fields.verification import Verification
from tests.support.commands.run_program import run_program
from tests.unit.receiver_runtime.receivers.http.http_client import listening

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "sources" / "web-hooks.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[tuple[str, str]]:
    """Return the blocks of the matching languages, in order."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [(name, text) for name, text in found if re.fullmatch(language, name)]


def table(heading: str) -> Sequence[Sequence[str]]:
    text = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]


def declared(example: str) -> Stream:
    names: dict[str, object] = {}
    exec(example, names)
    [stream] = [value for value in names.values() if isinstance(value, Stream)]
    return stream


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("openssl")), reason="curl or openssl is not here")
def test_its_commands_get_the_answers_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_SECRET", "It's a Secret to Everybody")
    source = declared(blocks("python")[0][1]).source
    assert isinstance(source, Http)
    answers = []
    with listening(
        tmp_path, stream_name="github", **source.model_dump(include={"verify", "key_from", "headers"})
    ) as made:
        for language, text in blocks("sh|json answer"):
            if language == "sh":
                command = ["bash", "-euo", "pipefail", "-c", text.replace(":8080", f":{made.port}")]
            else:
                answer = run_program(command, env=dict(os.environ), cwd=tmp_path, check=True).stdout
                assert json.loads(answer) == json.loads(text)
                answers.append(answer)
        assert len(answers) == 3
        [row] = made.rows()
    assert row["body"] == b'{"zen": "Keep it logically awesome."}'
    assert (row["id"], dict(row["attributes"])) == ("72d3162e-cc78", {"x-github-event": "ping"})


def test_its_other_sender_is_declared_as_it_says() -> None:
    source = declared(blocks("python")[1][1]).source
    assert isinstance(source, Http)
    assert isinstance(source.verify, Hmac)
    assert (source.key_from, source.verify.prefix, source.verify.tolerance) == ("body:/invoice/id", "v1=", 300.0)


def test_its_table_names_every_sender_as_it_is_declared() -> None:
    names = {"EnvVar": EnvVar, **{name: getattr(web_hooks, name) for name in dir(web_hooks)}}
    rows = [row for row in table("Senders") if row[1] != "declared as" and "---" not in row[1]]
    made = set()
    for _, declaration, _, key_from in rows:
        verify = eval(re.findall(r"`([^`]+)`", declaration)[0], names)
        assert isinstance(verify, Verification)
        made.add(type(verify).__name__)
        place = None if key_from == "none" else ast.literal_eval(key_from.strip("`"))
        assert Http(listen="127.0.0.1:0", verify=verify, key_from=place).key_from == place
        assert place is None or place in (type(verify).__doc__ or "")
    assert made == set(dir(web_hooks)) - {"Hmac", "Verification"}


def test_its_table_names_every_field() -> None:
    rows = {row[0].strip("`"): row[1].strip("`") for row in table("Another sender") if row[0][:1] == "`"}
    fields = {name: field for name, field in Hmac.model_fields.items() if name != "kind"}
    assert rows.keys() == fields.keys()
    for name, field in fields.items():
        if field.default is PydanticUndefined:
            assert rows[name] == "required"
        else:
            assert ast.literal_eval(rows[name]) == field.default
