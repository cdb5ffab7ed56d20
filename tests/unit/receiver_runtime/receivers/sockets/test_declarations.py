from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from receiver_runtime.receivers.sockets.raw_declaration import RawSocket
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.fields.tcp import Tls
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source


def test_the_defaults_are_those_of_the_reference_page() -> None:
    source = SocketText(host="a", port=1)
    assert (source.delimiter, source.encoding, source.max_record_bytes) == ("\n", "utf-8", 1_048_576)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("host", "", "host: .*give a name or an address"),
        ("host", "tcp://a", "host: .*'tcp://a'"),
        ("port", 0, "port: .*greater than or equal to 1 .*found 0"),
        ("port", 70000, "port: .*65535 .*found 70000"),
        ("delimiter", "", "delimiter: '' is no delimiter: give 1 to 64 bytes"),
        ("delimiter", "x" * 65, "delimiter: .*give 1 to 64 bytes"),
        ("delimiter", "hex:0", "delimiter: .*hex"),
        ("encoding", "utf-16", "encoding: 'utf-16' can't be cut"),
        ("encoding", "iso2022_jp", "encoding: 'iso2022_jp' can't be cut"),
        ("encoding", "nonsense", "encoding: "),
        ("max_record_bytes", "1 potato", "max_record_bytes: '1 potato' is no size"),
        ("max_record_bytes", 0, "max_record_bytes: "),
        ("connect_timeout", "soon", "connect_timeout: 'soon' is no duration"),
        ("listen", "0.0.0.0:9999", "give host and port, or listen='0.0.0.0:9999', and not both"),
        ("listen", "9999", "listen: '9999' is no address to listen on: give host:port"),
        ("listen", "0.0.0.0:65536", "listen: .* is no address to listen on: give a port up to 65535"),
        ("max_connections", 0, "max_connections: "),
        ("tls", {"ca_file": "ca.pem"}, "tls.ca_file: 'ca.pem' is no whole path"),
        ("tls", {"key_file": "/key.pem"}, "tls: .*give certificate_file too"),
        ("tls", {"verify": False, "ca_file": "/ca.pem"}, "tls: verify=False checks nothing"),
        ("tls", {"ca": "/ca.pem"}, "tls.ca: .*"),
        ("colour", 1, "colour: socket_text has no such field: use host, port"),
        ("prot", 1, "prot: socket_text has no such field: did you mean port"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_the_fix(field: str, value: object, message: str) -> None:
    declaration = {"kind": "socket_text", "host": "a", "port": 1} | {field: value}
    with pytest.raises(SourceError, match=message):
        parse_source(declaration)
    fields = {key: value for key, value in declaration.items() if key != "kind"}
    with pytest.raises(ValidationError):
        SocketText(**fields)


def test_a_missing_field_and_an_unknown_kind_are_named() -> None:
    with pytest.raises(SourceError, match="give port too"):
        parse_source({"kind": "socket_text", "host": "a"})
    with pytest.raises(SourceError, match="give host too"):
        parse_source({"kind": "socket_text", "port": 1})
    with pytest.raises(SourceError, match="give host and port, or listen="):
        parse_source({"kind": "raw_socket"})
    with pytest.raises(SourceError, match="give certificate_file and key_file"):
        parse_source({"kind": "raw_socket", "listen": "[::]:9999", "tls": True})
    with pytest.raises(SourceError, match=r"kind: 'carrier_pigeon'.*socket_text"):
        parse_source({"kind": "carrier_pigeon"})
    with pytest.raises(SourceError, match="kind: None"):
        parse_source({})


@pytest.mark.parametrize(
    ("delimiter", "encoding", "stored", "sent"),
    [
        ("\n", "utf-8", "\n", b"\n"),
        (b"\r\n", "utf-8", "\r\n", b"\r\n"),
        ("\0", "utf-8", "hex:00", b"\0"),
        (b"\x1e\xff", "utf-8", "hex:1eff", b"\x1e\xff"),
        ("§", "utf-8", "hex:c2a7", b"\xc2\xa7"),
        ("§", "latin-1", "hex:a7", b"\xa7"),
        (b"hex:", "utf-8", "hex:6865783a", b"hex:"),
        ("hex:0d0a", "utf-8", "\r\n", b"\r\n"),
    ],
)
def test_a_delimiter_is_stored_as_text_or_in_hexadecimal(
    delimiter: str | bytes, encoding: str, stored: str, sent: bytes
) -> None:
    source = SocketText(host="a", port=1, delimiter=delimiter, encoding=encoding)
    declaration = source.model_dump(mode="json")
    assert declaration["delimiter"] == stored
    assert source.delimiter_bytes == sent
    assert parse_source(json.loads(json.dumps(declaration))) == source


def test_a_delimiter_that_may_be_part_of_a_character_is_refused() -> None:
    with pytest.raises(ValidationError, match="can be a part of a character in shift_jis"):
        SocketText(host="a", port=1, encoding="shift_jis", delimiter="||")
    SocketText(host="a", port=1, encoding="shift_jis", delimiter="\r\n")


def test_the_listen_address_and_its_tls() -> None:
    assert RawSocket(listen="0.0.0.0:9999").listen_address == ("0.0.0.0", 9999)
    assert RawSocket(host="a", port=1, tls=True).tls == Tls()
    assert RawSocket(host="a", port=1, tls=False).tls is None


def test_settings_accept_units_and_ignore_other_keys() -> None:
    settings = ReceiverSettings.of_row({"block_interval": "50ms", "max_block_bytes": "1MiB", "retention": "7d"})
    assert (settings.block_interval, settings.max_block_bytes, settings.block_queue_size) == (0.05, 2**20, 10)
    with pytest.raises(ValidationError):
        ReceiverSettings.of_row({"block_interval": "0ms"})


def test_the_leaf_loads_pydantic_and_no_other_package_of_ours() -> None:
    code = (
        "import sys, receiver_runtime.sources.source_registry\n"
        "heavy = {'pyarrow', 'sqlalchemy', 'numpy', 'structlog', 'dagster', 'pyspark'}\n"
        "ours = {name for name in sys.modules if name.startswith('tracker_store.')}\n"
        "print(sorted(heavy & set(sys.modules) | ours))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    # The rule by which all of Forebay says "did you mean", which loads the standard library alone.
    assert done.stdout.strip() == "['tracker_store.close_names']"
