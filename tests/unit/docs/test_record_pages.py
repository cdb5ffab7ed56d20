"""Check the pages on kinds of records: their declarations are valid, and their records become the rows shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

from forebay import Stream

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    ROOT / "docs" / "how-to" / "typed-streams.md",
    *(ROOT / "forebay_contrib" / kind / "README.md" for kind in ("csv_records", "json_schema", "log_lines", "statsd")),
]
_EXAMPLES = re.compile(
    r"^```python\n((?:(?!^```).)*?)^```\n\n```text records\n(.*?)^```\n\n```json rows\n(.*?)^```",
    re.MULTILINE | re.DOTALL,
)
_DECLARATIONS = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def streams_of(page: Path, code: str) -> list[Stream]:
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(code, str(page), "exec", dont_inherit=True), names)
    return [value for value in names.values() if isinstance(value, Stream)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_each_declaration_is_valid(page: Path) -> None:
    found = [code for code in _DECLARATIONS.findall(page.read_text(encoding="utf-8")) if " Stream(" in code]
    assert found
    for code in found:
        assert [stream.records is not None for stream in streams_of(page, code)] == [True]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_records_become_the_rows_that_the_page_shows(page: Path) -> None:
    found = _EXAMPLES.findall(page.read_text(encoding="utf-8"))
    assert found
    for code, records, rows in found:
        [stream] = streams_of(page, code)
        assert stream.records is not None
        reader = stream.records.load_reader()(stream.records)
        parsed = reader.read(pa.array(records.encode().splitlines(), pa.binary()))
        assert parsed.faults == ()
        assert json.loads(json.dumps(parsed.batch.to_pylist(), default=str)) == json.loads(rows)
