"""The page on files: its declarations are good ones, and its tables are the fields. Its statements run elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from forebay import Stream
from receiver_runtime.sources.files import FileLines, FollowedFiles, WholeFiles

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "sources" / "files.md").read_text(encoding="utf-8")
DECLARATIONS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TABLES = PAGE.split("### Fields")[1:]


def test_the_declarations_are_good() -> None:
    names: dict[str, object] = {}
    for declaration in DECLARATIONS:
        exec(compile(declaration, "files.md", "exec"), names)
    streams = {value.name: value.source for value in names.values() if isinstance(value, Stream)}
    assert {name: type(source) for name, source in streams.items()} == {
        "logs": FollowedFiles,
        "orders": FileLines,
        "scans": WholeFiles,
    }


@pytest.mark.parametrize(("table", "source"), [(0, FollowedFiles), (1, FileLines)])
def test_the_tables_are_the_fields(table: int, source: type[FollowedFiles | FileLines]) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]*?)`? \|", TABLES[table], re.MULTILINE))
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in source.model_fields.items()
        if name != "kind"
    }
    assert rows == {
        name: "required" if default is PydanticUndefined else repr(default) for name, default in defaults.items()
    }


def test_whole_files_have_the_same_fields_but_for_the_encoding() -> None:
    assert set(FileLines.model_fields) - set(WholeFiles.model_fields) == {"encoding"}
    assert WholeFiles.model_fields["max_record_bytes"].default == 16 * 2**20
