"""Check the pages on sources: their declarations are valid, and their tables match the fields.

tests/integration/docs runs the statements of these pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic_core import PydanticUndefined

from forebay import Stream
from forebay_contrib.datagrams.declaration import Datagrams
from forebay_contrib.gelf.declaration import Gelf
from forebay_contrib.mqtt.declaration import Mqtt
from forebay_contrib.nats.declaration import NatsJetStream
from forebay_contrib.opentelemetry.declaration import OtlpLogs, OtlpMetrics, OtlpTraces
from forebay_contrib.redis.declaration import RedisStreams
from forebay_contrib.zeromq.declaration import ZeroMQ
from receiver_runtime.receivers.files.declaration import FileLines, FollowedFiles, WholeFiles
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.kafka.declaration import Kafka

if TYPE_CHECKING:
    from receiver_runtime.sources.source import Source

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "docs" / "how-to" / "sources"
#: The pages of contributed kinds stand with them; they are named here by their folders.
CONTRIB = ROOT / "forebay_contrib"


def text_of(page: str) -> str:
    path = CONTRIB / page / "README.md" if (CONTRIB / page).is_dir() else PAGES / page
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "declared"),
    [
        (
            "files.md",
            [
                {"logs": FollowedFiles},
                {"orders": FileLines, "scans": WholeFiles},
                {"traces": FollowedFiles, "events": FollowedFiles},
            ],
        ),
        ("datagrams", [{"lines": Datagrams}]),
        ("gelf", [{"logs": Http}, {"messages": Gelf}, {"typed": Gelf}]),
        ("kafka.md", [{"orders": Kafka}, {"clicks": Kafka}, {"payments": Kafka}]),
        ("mqtt", [{"temperatures": Mqtt}, {"orders": Mqtt}]),
        ("nats", [{"orders": NatsJetStream}]),
        ("opentelemetry", [{"logs": OtlpLogs, "traces": OtlpTraces, "metrics": OtlpMetrics}]),
        ("redis", [{"orders": RedisStreams}]),
        ("zeromq", [{"prices": ZeroMQ}, {"jobs": ZeroMQ}]),
    ],
)
def test_the_declarations_are_valid(page: str, declared: list[dict[str, type[Source]]]) -> None:
    found = []
    for declaration in re.findall(r"^```python\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL):
        names: dict[str, object] = {}
        exec(compile(declaration, page, "exec"), names)
        streams = [value for value in names.values() if isinstance(value, Stream)]
        found.append({stream.name: type(stream.source) for stream in streams})
    assert found == declared


@pytest.mark.parametrize(
    ("page", "table", "source"),
    [
        ("files.md", 0, FollowedFiles),
        ("files.md", 1, FileLines),
        ("datagrams", 0, Datagrams),
        ("gelf", 0, Gelf),
        ("kafka.md", 0, Kafka),
        ("mqtt", 0, Mqtt),
        ("nats", 0, NatsJetStream),
        ("opentelemetry", 0, OtlpLogs),
        ("redis", 0, RedisStreams),
        ("zeromq", 0, ZeroMQ),
    ],
)
def test_the_table_matches_the_fields(page: str, table: int, source: type[Source]) -> None:
    """Compare. `table` is the table's number among the page's tables of fields."""
    text = text_of(page).split("\n| field | default |")[1:][table].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]*?)`? \|", text, re.MULTILINE))
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in source.model_fields.items()
        if name != "kind"
    }
    assert rows == {
        name: "required" if default is PydanticUndefined else repr(default) for name, default in defaults.items()
    }


def test_whole_files_have_the_same_fields_except_those_of_lines() -> None:
    assert set(FileLines.model_fields) - set(WholeFiles.model_fields) == {"binary_lines", "encoding", "multiline"}
    assert WholeFiles.model_fields["max_record_bytes"].default == 16 * 2**20


def test_the_columns_of_mqtt_are_named() -> None:
    assert [name for name, _ in Mqtt.columns if f"`{name}`" not in text_of("mqtt")] == []
