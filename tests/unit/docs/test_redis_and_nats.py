"""The pages on Redis and NATS: their declarations are good ones, and their tables are the fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic_core import PydanticUndefined

from forebay import Stream
from receiver_runtime.sources.nats_jetstream import NatsJetStream
from receiver_runtime.sources.redis_streams import RedisStreams

if TYPE_CHECKING:
    from receiver_runtime.sources.base import Source

PAGES = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "sources"
SOURCES: list[tuple[str, type[Source]]] = [("redis.md", RedisStreams), ("nats.md", NatsJetStream)]


@pytest.mark.parametrize(("page", "source"), SOURCES)
def test_the_declaration_is_good(page: str, source: type[Source]) -> None:
    text = (PAGES / page).read_text(encoding="utf-8")
    [declaration] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(declaration, page, "exec"), names)
    [stream] = [value for value in names.values() if isinstance(value, Stream)]
    assert isinstance(stream.source, source)


@pytest.mark.parametrize(("page", "source"), SOURCES)
def test_the_table_is_the_fields(page: str, source: type[Source]) -> None:
    text = (PAGES / page).read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]*?)`? \|", text, re.MULTILINE))
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in source.model_fields.items()
        if name != "kind"
    }
    assert rows == {
        name: "required" if default is PydanticUndefined else repr(default) for name, default in defaults.items()
    }
