"""Check for every kind, also for future ones, that a byte-order mark is no part of text, and that binary keeps it."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from forebay_contrib.csv_records.declaration import Csv
from forebay_contrib.datagrams.framing import DatagramFraming
from forebay_contrib.gelf.declaration import Gelf
from forebay_contrib.gelf.framing import GelfFraming
from forebay_contrib.json_schema.declaration import JsonSchema
from forebay_contrib.log_lines.declaration import Logfmt, Regex
from forebay_contrib.schema_records.avro import Avro
from forebay_contrib.schema_records.protobuf import Protobuf
from forebay_contrib.statsd.declaration import Statsd
from forebay_contrib.syslog.framing import SyslogFraming
from receiver_runtime.receivers.files.content import OpenedFile
from receiver_runtime.receivers.files.declaration import FileLines, FollowedFiles
from receiver_runtime.receivers.files.records import Limits, LineReader, Reading
from receiver_runtime.receivers.http.declaration import HTTP_PROTOCOLS, Http
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED
from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH, TARGET_QUERY, Pushed, PushedRows
from receiver_runtime.receivers.http.requests.records import Plain
from receiver_runtime.receivers.http.requests.refusals import RefusedError
from receiver_runtime.receivers.http.requests.route import Reply
from receiver_runtime.receivers.http.requests.signatures import SignatureCheck
from receiver_runtime.receivers.http.routes import routes_of
from receiver_runtime.receivers.sockets.marked_text import MarkedTextFraming
from receiver_runtime.sources.fields.verification import WEB_HOOKS
from receiver_runtime.sources.plugins import registered
from receiver_runtime.sources.records.json_records import Json
from receiver_runtime.sources.source_registry import source_class, source_kinds
from tests.unit.receiver_runtime.receivers.signing import SECRET, SIGNED, TOKEN, signature_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from receiver_runtime.receivers.framing import Cut, Framing
    from receiver_runtime.sources.records.declared import Records

MARK = codecs.BOM_UTF8


@dataclass(frozen=True)
class Request:
    """Hold a request of a protocol, as it would be without a mark; and the protocol that takes it."""

    protocol: str
    text: str
    content_type: str
    path: str = "/v1/{stream}"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = "auto"
    key_from: str | None = None

    def parsed(self, encoded: bytes, charset: str = "") -> Any:  # noqa: ANN401  what is compared
        """Return all that becomes of the request with these bytes."""
        fields = {"protocols": (self.protocol,), "body": self.body, "key_from": self.key_from}
        made = Http.model_validate({"listen": "127.0.0.1:0", **fields})
        sent = {**self.headers, "content-type": self.content_type + charset}
        headers = [(name.encode(), value.encode()) for name, value in sent.items()]
        if self.path != "/v1/{stream}":
            headers += [(TARGET_PATH, self.path.encode()), (TARGET_QUERY, b"")]
        route = next(one for one in routes_of(made) if one.path == self.path and one.matches(headers))
        parsed = (route.parse_at_once and route.parse_at_once(headers, encoded, made)) or route.parse(
            headers, encoded, made, UNLIMITED
        )
        return _shown(parsed)


def _shown(parsed: Pushed | PushedRows | Plain | Reply) -> Any:  # noqa: ANN401  what is compared
    if isinstance(parsed, Reply):
        return parsed.status, parsed.body
    if isinstance(parsed, Plain):
        bodies = parsed.bodies.to_pylist() if isinstance(parsed.bodies, pa.Array) else list(parsed.bodies)
        return bodies, parsed.key, parsed.keys, parsed.rejected
    if isinstance(parsed, Pushed):
        return list(parsed.records), parsed.rejected
    rows = [{name: value for name, value in row.items() if name != "received_at"} for row in parsed.batch.to_pylist()]
    # A key of the whole body is of its bytes.
    return rows, parsed.keys, parsed.rejected


_EVENT = '{"specversion":"1.0","id":"1","source":"/ä","type":"t","data":{"n":1}}'
_OTLP = (
    '{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":"1","body":{"stringValue":"ä"}},'
    '{"timeUnixNano":"x"}]}]}]}'
)
_JSON, _LINES, _TEXT = "application/json", "application/x-ndjson", "text/plain"
_LONG = "".join(f'{{"id": {number}, "a": "ä"}}\n' for number in range(99))
#: Requests of text by each protocol. Plain bodies are taken by all, so they have the one that is there by default.
REQUESTS: Mapping[str, Request] = {
    "json": Request("cloudevents", '{"a": "ä"}', _JSON),
    "json array": Request("cloudevents", '[{"a": "ä"}, {"a": NaN}]', _JSON),
    "json without a type": Request("cloudevents", '{"a": "ä"}', ""),
    "json in a form's type": Request("cloudevents", '{"a":\n "ä"}', "application/x-www-form-urlencoded"),
    "json lines": Request("cloudevents", '{"a": "ä"}\n{"a": \n{"b": 1}', _LINES),
    "many json lines": Request("cloudevents", _LONG, _LINES),
    "json sequence": Request("cloudevents", '\x1e{"a": "ä"}\n\x1e{"a": 2\n', "application/json-seq"),
    "lines": Request("cloudevents", "one,ä\ntwo\n", _TEXT),
    "csv lines": Request("cloudevents", "a,b\n1,2\n", "text/csv", body="lines"),
    "many lines": Request("cloudevents", _LONG.replace("{", "x"), _TEXT),
    "key": Request("cloudevents", '{"id": "a", "b": "ä"}', _JSON, key_from="body:/id"),
    "keys of lines": Request("cloudevents", '{"id": "a"}\n{"id": "b"}', _LINES, key_from="body:/id"),
    "cloud event": Request("cloudevents", _EVENT, "application/cloudevents+json"),
    "batch of cloud events": Request("cloudevents", f"[{_EVENT}, 1]", "application/cloudevents-batch+json"),
    "bulk": Request("elasticsearch", '{"index":{"_id":"1"}}\n{"a":"ä"}\n{"index":{}}\n{"a":\n', _LINES, path="/_bulk"),
    "many in bulk": Request("elasticsearch", '{"create":{"_index":"i"}}\n{"a":"ä"}\n' * 60, _LINES, path="/_bulk"),
    "event grid": Request(
        "event_grid",
        '[{"data": {"validationCode": "c"}}]',
        _JSON,
        headers={"aeg-event-type": "SubscriptionValidation"},
    ),
    "slack": Request("slack", '{"type": "url_verification", "challenge": "c"}', _JSON),
    "gelf": Request("gelf", '{"version":"1.1","host":"h","short_message":"ä"}', _JSON, path="/gelf"),
    "loki": Request(
        "loki", '{"streams":[{"stream":{"a":"ä"},"values":[["1","x"],["y","z"]]}]}', _JSON, path="/loki/api/v1/push"
    ),
    "otlp": Request("opentelemetry", _OTLP, _JSON, path="/v1/logs"),
    "hec events": Request("splunk_hec", '{"event": "ä"}{"event": {"n": 1}}', _JSON, path="/services/collector/event"),
    "hec events, one of them none": Request(
        "splunk_hec", '{"event": "ä"} {"no": 1} {"event": 2}', _TEXT, path="/services/collector"
    ),
    "hec raw": Request("splunk_hec", "one ä\ntwo", _TEXT, path="/services/collector/raw"),
}
#: Those whose bodies are no text: protobuf, and a question that is a query. SNS has tests of its own.
NO_TEXT = {"prometheus", "hub_challenge", "sns"}


def test_each_protocol_is_in_these_tests() -> None:
    assert {one.protocol for one in REQUESTS.values()} | NO_TEXT == set(registered(HTTP_PROTOCOLS))


@pytest.mark.parametrize("name", REQUESTS)
def test_a_mark_is_no_part_of_a_request(name: str) -> None:
    request = REQUESTS[name]
    expected = request.parsed(request.text.encode())
    assert expected[0]
    assert request.parsed(MARK + request.text.encode()) == expected
    assert request.parsed(MARK + request.text.encode(), "; charset=utf-8") == expected


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-be"])
def test_a_mark_of_another_encoding_says_how_to_read_it(name: str, encoding: str) -> None:
    request = REQUESTS[name]
    body = ("\ufeff" + request.text).encode(encoding)
    charset = f"; charset={encoding[:6]}"

    def values(shown: Any) -> list[Any]:  # noqa: ANN401  what is compared
        found = [one["body"] if isinstance(one, dict) and "body" in one else one for one in shown[0]]
        return [getattr(one, "body", one) for one in found]

    if isinstance(request.parsed(request.text.encode())[0], int):
        assert request.parsed(body, charset) == request.parsed(request.text.encode())
    else:
        assert values(request.parsed(body, charset)) == values(request.parsed(request.text.encode()))


def test_binary_bodies_keep_a_mark() -> None:
    event = {"ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-specversion": "1.0"}
    for request in (
        Request("cloudevents", "{}", "application/octet-stream", body="whole"),
        Request("cloudevents", "{}", "image/png"),
        # Its data are what was sent.
        Request("cloudevents", "{}", "application/json", headers=event),
    ):
        [[one], *_] = request.parsed(MARK + b"\x01")
        assert (one if isinstance(one, bytes) else one.body) == MARK + b"\x01"


def test_each_way_to_verify_is_in_these_tests() -> None:
    assert set(SIGNED) - {"hmac"} | {"sns"} == set(registered(WEB_HOOKS))


@pytest.mark.parametrize("name", SIGNED)
def test_a_signature_is_over_the_mark(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_HOOK", SECRET)
    monkeypatch.setenv("A_TOKEN", TOKEN)
    body = MARK + b'{"a": 1}'

    def check(query: str, named: Mapping[str, str], body: bytes) -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in named.items()]
        SignatureCheck(SIGNED[name]).begin(headers, query.encode()).check(body)

    check(*signature_headers(SIGNED[name], body), body)
    with pytest.raises(RefusedError):
        check(*signature_headers(SIGNED[name], body[3:]), body)
    with pytest.raises(RefusedError):
        check(*signature_headers(SIGNED[name], body), body[3:])


def _schema(kind: str) -> Mapping[str, object]:
    return {"type": "object", "properties": {"a": {"type": kind}, "b": {"type": "integer"}}}


#: For each kind of records: its declaration, a record of text, and a second one that it refuses.
TEXT_RECORDS: Mapping[str, tuple[Records, bytes, bytes]] = {
    "csv": (Csv("a STRING, b INT"), b'"x, y",1', b"a"),
    "json": (Json("a STRING, b INT"), b'{"a": "x", "b": 1}', b"1"),
    "json_schema": (JsonSchema(_schema("string")), b'{"a": "x", "b": 1}', b"1"),
    "logfmt": (Logfmt("a STRING, b INT"), b'a="x y" b=1', b"=1"),
    "statsd": (Statsd(), b"x:1|c", b"x"),
    "regex": (Regex(r"(?P<a>\w+) (?P<b>\d+)", "a STRING, b INT"), b"x 1", b"x"),
}
BINARY_RECORDS = {"avro", "protobuf"}


def test_each_kind_of_records_is_in_these_tests() -> None:
    assert set(TEXT_RECORDS) | BINARY_RECORDS == set(registered("forebay.records"))


@pytest.mark.parametrize("kind", TEXT_RECORDS)
@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_a_mark_is_no_part_of_a_record(kind: str, end: bytes) -> None:
    records, good, bad = TEXT_RECORDS[kind]
    reader = records.load_reader()(records)

    def read(*values: bytes) -> tuple[list[dict[str, Any]], list[tuple[int, object]]]:
        # A slice, because its first record does not begin where its memory does.
        parsed = reader.read(pa.array([MARK, *values], pa.binary()).slice(1))
        return parsed.batch.to_pylist(), [(fault.row, fault.reason) for fault in parsed.faults]

    plain = [one + end for one in (good, bad, good, good, b"")]
    marked = [MARK + one for one in plain]
    expected = read(*plain)
    assert next(iter(expected[0][0].values()))[0] == "x"
    assert read(*marked) == expected
    assert read(marked[0], *plain[1:]) == expected
    assert read(*plain[:2], marked[2], *plain[3:]) == expected
    # A second one is a character, and so is one within.
    assert read(MARK + MARK + good)[0] != read(good)[0] or kind == "regex"


def test_a_mark_is_kept_where_records_are_binary() -> None:
    fixed = {"name": "a", "type": {"type": "fixed", "name": "f", "size": 3}}
    avro = Avro({"type": "record", "name": "r", "fields": [fixed]})
    assert avro.load_reader()(avro).read(pa.array([MARK], pa.binary())).batch.to_pylist() == [{"a": MARK}]
    # In protobuf it is a tag that no field has, and not passed over.
    proto = Protobuf('syntax = "proto3"; message A { int32 a = 1; }')
    parsed = proto.load_reader()(proto).read(pa.array([b"\x08\x01", MARK + b"\x08\x01"], pa.binary()))
    assert (parsed.batch.to_pylist(), [fault.row for fault in parsed.faults]) == ([{"a": 1}], [1])


def _cut(framing: Framing, data: bytes) -> list[Any]:
    """Return what one connection's bytes become, a byte at a time."""
    splitter = framing.open()
    takens = [splitter.take(bytearray([octet]), 1) for octet in data]
    takens.append(splitter.finish(clean=True))
    found = [framing.cut([taken.piece]).records for taken in takens if taken.piece is not None]
    assert not any([*taken.before, *taken.after] for taken in takens)
    return [
        value
        for part in found
        if part is not None
        for value in (part.column("message") if isinstance(part, pa.RecordBatch) else part).to_pylist()
    ]


def _of_datagrams(cuts: Iterable[Cut]) -> list[Any]:
    return [text for cut in cuts if cut.records is not None for text in cut.records.column("value").to_pylist()]


def _lines_of(source: FileLines | FollowedFiles, data: bytes) -> list[Any]:
    reading = Reading("a")
    found: list[Any] = []
    reader = LineReader.of(source)
    more = True
    while more:
        content = OpenedFile(pa.BufferReader(data))
        part = reader.read(reading, content, Limits(10, 2), path="a", modified_ms=1, ends=True)
        assert not part.letters
        more = part.more
        found += [] if part.batch is None else part.batch.column("value").to_pylist()
    return found


#: For each kind whose records are text before they have a reader: what its lines become.
TEXT_SOURCES: Mapping[str, Callable[[bytes], list[Any]]] = {
    "file_lines": lambda data: _lines_of(FileLines(path="/in"), data),
    "followed_files": lambda data: _lines_of(FollowedFiles(path="/in/*"), data),
    "socket_text": lambda data: _cut(MarkedTextFraming(max_record_bytes=99), data),
    "syslog": lambda data: _cut(SyslogFraming(timezone="UTC", max_record_bytes=99), data),
    "datagrams": lambda data: _of_datagrams(DatagramFraming(whole=False).cut([data], ["h"])),
}
#: Those whose texts are values within another format, which says what they are; GELF has a test of its own.
WITHIN_OTHERS = {"container_logs", "fluent_forward", "gelf"}


def test_each_kind_of_source_is_in_these_tests_or_keeps_bytes() -> None:
    for kind in set(source_kinds()) - {"custom"} - set(TEXT_SOURCES) - WITHIN_OTHERS:
        # As they came; a reader of records looks for marks.
        source = source_class(kind)
        assert source.record_column == "" or dict(source.columns)[source.record_column] == "binary", kind


@pytest.mark.parametrize("kind", TEXT_SOURCES)
def test_a_mark_is_no_part_of_a_stream(kind: str) -> None:
    lines = "<13>1 2026-01-01T00:00:00Z h a - - - one ä\n<13>1 - - - - - - two\n"
    expected = TEXT_SOURCES[kind](lines.encode())
    assert [text[-3:] for text in expected] == ["e ä", "two"]
    assert TEXT_SOURCES[kind](MARK + lines.encode()) == expected
    if kind not in ("syslog", "datagrams"):
        # Its senders send no other encoding.
        for encoding in ("utf-16", "utf-32"):
            assert TEXT_SOURCES[kind](lines.encode(encoding)) == expected


def test_a_mark_before_the_text_of_rfc_5424_is_no_part_of_it() -> None:
    head = b"<13>1 2026-01-01T00:00:00Z h a - - - "
    assert TEXT_SOURCES["syslog"](head + MARK + b"one\n" + head + b"two\n") == ["one", "two"]


def test_a_mark_before_a_message_of_gelf_is_no_part_of_it() -> None:
    message = b'{"version":"1.1","host":"h","short_message":"one"}'
    framing = GelfFraming(Gelf(listen="127.0.0.1:0", transports=["udp"]))
    assert _of_datagrams(framing.cut_datagrams([MARK + message, message], ["h"] * 2)) == [message.decode()] * 2
