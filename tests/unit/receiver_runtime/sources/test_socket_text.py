from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from receiver_runtime.sources.base import SourceError, SourceRule
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.sources.socket_text import SocketText
from receiver_runtime.sources.source_registry import parse_source


def test_a_declaration_comes_back_from_its_json() -> None:
    source = SocketText(host="::1", port=9999, max_record_bytes="64KiB", connect_timeout="3s", encoding="latin-1")
    again = parse_source(source.model_dump(mode="json"))
    assert again == source
    assert isinstance(again, SocketText)
    assert (again.max_record_bytes, again.connect_timeout, again.encoding) == (65536, 3.0, "iso8859-1")
    assert again.address == "[::1]:9999"
    assert again.columns == (("value", "string"),)
    assert again.source_rule is SourceRule.NOT_SENT_AGAIN


def test_the_defaults_are_those_of_the_reference() -> None:
    source = SocketText(host="a", port=1)
    assert (source.delimiter, source.encoding, source.max_record_bytes) == ("\n", "utf-8", 1_048_576)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("host", "", "host: .*give a name or an address"),
        ("host", "tcp://a", "host: .*'tcp://a'"),
        ("port", 0, "port: .*greater than or equal to 1 .*found 0"),
        ("port", 70000, "port: .*65535 .*found 70000"),
        ("delimiter", "\r\n", "delimiter: .*one ASCII character"),
        ("delimiter", "é", "delimiter: "),
        ("encoding", "utf-16", "encoding: 'utf-16' can't be cut"),
        ("encoding", "nonsense", "encoding: "),
        ("max_record_bytes", "1 potato", "max_record_bytes: '1 potato' is no size"),
        ("max_record_bytes", 0, "max_record_bytes: "),
        ("connect_timeout", "soon", "connect_timeout: 'soon' is no duration"),
        ("prot", 1, "prot: socket_text has no such field .*port"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_the_way_out(field: str, value: object, message: str) -> None:
    declaration = {"kind": "socket_text", "host": "a", "port": 1} | {field: value}
    with pytest.raises(SourceError, match=message):
        parse_source(declaration)
    fields = {key: value for key, value in declaration.items() if key != "kind"}
    with pytest.raises(ValidationError):
        SocketText(**fields)


def test_a_missing_field_and_an_unknown_kind_are_named() -> None:
    with pytest.raises(SourceError, match="port: socket_text needs it"):
        parse_source({"kind": "socket_text", "host": "a"})
    with pytest.raises(SourceError, match=r"kind: 'carrier_pigeon'.*socket_text"):
        parse_source({"kind": "carrier_pigeon"})
    with pytest.raises(SourceError, match="kind: None"):
        parse_source({})


def test_settings_take_units_and_pass_over_keys_of_others() -> None:
    settings = ReceiverSettings.of_row({"block_interval": "50ms", "max_block_bytes": "1MiB", "retention": "7d"})
    assert (settings.block_interval, settings.max_block_bytes, settings.block_queue_size) == (0.05, 2**20, 10)
    with pytest.raises(ValidationError):
        ReceiverSettings.of_row({"block_interval": "0ms"})


def test_the_leaf_loads_pydantic_and_nothing_of_ours() -> None:
    code = (
        "import sys, receiver_runtime.sources.source_registry\n"
        "heavy = {'pyarrow', 'sqlalchemy', 'numpy', 'structlog', 'dagster', 'pyspark', 'tracker_store'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
