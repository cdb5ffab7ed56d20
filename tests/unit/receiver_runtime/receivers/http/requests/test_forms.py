"""Check which records a body becomes: by its type, by its bytes where that is often wrong, or as the source says."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.decompression import decompressed
from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from receiver_runtime.receivers.http.requests.records import lines_at_once, parse_plain
from tests.support.searches import examples

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 2**20
DOCUMENT = json.dumps({"Type": "Notification", "Message": "a\nb", "of": [{"x": 1}]}, indent=2).encode()
JSON_LINES = b'{"level":30,"msg":"one"}\n{"level":30,"msg":"two"}\n'
PLAIN, ABSENT, CURL = "text/plain; charset=UTF-8", None, "application/x-www-form-urlencoded"


def bodies(body: bytes, content_type: str | None, *, form: str = "auto") -> list[bytes]:
    headers = [] if content_type is None else [(b"content-type", content_type.encode())]
    found = parse_plain(headers, body, most_bytes=MOST, form=form)
    at_once = lines_at_once(headers, body, most_bytes=MOST, form=form)
    made = [one.as_py() if isinstance(one, pa.Scalar) else one for one in found.bodies]
    if at_once is not None:
        assert isinstance(at_once.bodies, pa.BinaryArray)
        assert at_once.bodies.to_pylist() == made
        assert at_once.content_type == found.content_type
    return made


@pytest.mark.parametrize(
    "content_type", ["text/plain", "text/plain; charset=latin-1", "application/x-ndjson", "application/json"]
)
@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress, bz2.compress, lzma.compress])
def test_a_compressed_body_of_which_nothing_is_said_is_not_cut_into_lines(
    compress: Callable[[bytes], bytes], content_type: str
) -> None:
    body = compress(b"a\nb\n" * 500)
    with pytest.raises(PushRefusedError, match="it is compressed"):
        bodies(body, content_type)
    assert lines_at_once([(b"content-type", content_type.encode())], body, most_bytes=MOST) is None
    assert bodies(body, content_type, form="whole") == [body]


@pytest.mark.parametrize(
    ("body", "content_type", "records"),
    [
        # SNS sends one document as text, over several lines.
        (DOCUMENT, PLAIN, [DOCUMENT]),
        (b"\n" + DOCUMENT + b"\n", "text/plain", [DOCUMENT]),
        (b"[\n" + DOCUMENT + b",\n" + DOCUMENT + b"]", PLAIN, [DOCUMENT, DOCUMENT]),
        (DOCUMENT, ABSENT, [DOCUMENT]),
        (DOCUMENT, CURL, [DOCUMENT]),
        # pino's transports send lines without a type.
        (JSON_LINES, ABSENT, JSON_LINES.splitlines()),
        (JSON_LINES, CURL, JSON_LINES.splitlines()),
        (JSON_LINES, PLAIN, JSON_LINES.splitlines()),
        (JSON_LINES, "application/json", JSON_LINES.splitlines()),
        (JSON_LINES * 60, "application/json", JSON_LINES.splitlines() * 60),
        (JSON_LINES * 60, ABSENT, JSON_LINES.splitlines() * 60),
        (b'{"a": 1}', ABSENT, [b'{"a": 1}']),
        (b'[{"a": 1}, {"b": 2}]', ABSENT, [b'{"a": 1}', b'{"b": 2}']),
        # What only looks like it is what its type says.
        (b"[INFO] started\n[WARN] slow\n", PLAIN, [b"[INFO] started", b"[WARN] slow"]),
        (b"{ not\njson }", PLAIN, [b"{ not", b"json }"]),
        (b"{ not\njson }", ABSENT, [b"{ not\njson }"]),
        (b"a=1&b=2", CURL, [b"a=1&b=2"]),
        (b"17\n18\n", PLAIN, [b"17", b"18"]),
        (b"17\n18\n", ABSENT, [b"17\n18\n"]),
        (JSON_LINES, "application/octet-stream", JSON_LINES.splitlines()),
        (DOCUMENT, "application/octet-stream", [DOCUMENT]),
        (b"\x1f\x8b\0", "application/octet-stream", [b"\x1f\x8b\0"]),
        (JSON_LINES, "text/json", JSON_LINES.splitlines()),
        (b'[{"a": 1}, {"b": 2}]', "text/json; charset=utf-8", [b'{"a": 1}', b'{"b": 2}']),
        *((JSON_LINES, kind, JSON_LINES.splitlines()) for kind in ("application/x-ndjson", "application/jsonl")),
        *((JSON_LINES, kind, JSON_LINES.splitlines()) for kind in ("text/x-ndjson", "application/x-json-stream")),
        (b'\x1e{"a":\n1}\n\x1e[2]\n\x1e3\n', "application/json-seq", [b'{"a":\n1}', b"[2]", b"3"]),
        (b'\x1e\x1e{"a": 1}\x1e"b"', "application/geo+json-seq", [b'{"a": 1}', b'"b"']),
        (JSON_LINES, "application/vnd.mine", [JSON_LINES]),
    ],
)
def test_auto_goes_by_the_type_and_looks_where_it_is_often_wrong(
    body: bytes, content_type: str | None, records: list[bytes]
) -> None:
    assert bodies(body, content_type) == records


@pytest.mark.parametrize(
    ("form", "records"),
    [
        ("json", [b'{"level":30,"msg":"one"}', b'{"level":30,"msg":"two"}']),
        ("json_lines", JSON_LINES.splitlines()),
        ("lines", JSON_LINES.splitlines()),
        ("whole", [JSON_LINES]),
    ],
)
@pytest.mark.parametrize("content_type", [PLAIN, ABSENT, "application/json", "application/x-ndjson", "image/png"])
def test_the_source_may_say_it(form: str, records: list[bytes], content_type: str | None) -> None:
    assert bodies(JSON_LINES, content_type, form=form) == records


@pytest.mark.parametrize("content_type", [ABSENT, CURL, "application/json"])
def test_the_odd_line_of_json_lines_may_be_the_first(content_type: str | None) -> None:
    headers = [] if content_type is None else [(b"content-type", content_type.encode())]
    for lines in (3, 100):
        found = parse_plain(headers, b'{"a"\n' + b'{"a": 2}\n' * lines, most_bytes=MOST)
        assert list(found.bodies) == [b'{"a": 2}'] * lines
        assert [one.data for one in found.rejected] == [b'{"a"']


def test_one_odd_line_of_json_lines_as_json_refuses_no_other() -> None:
    body = b'{"a": 1}\n{"b": }\n{"c": 3}\n'
    found = parse_plain([(b"content-type", b"application/json")], body, most_bytes=MOST)
    assert found.bodies == [b'{"a": 1}', b'{"c": 3}']
    assert [(one.data, one.reason) for one in found.rejected] == [(b'{"b": }', DeadLetterReason.UNPARSABLE)]


@pytest.mark.parametrize("body", [b'[\n{"a": 1},\n{"b": 2}', b'{"a":\n{"b": 2}', b'{"a": 1,}', b'{"a": 1} x'])
def test_a_broken_document_is_not_taken_for_lines(body: bytes) -> None:
    with pytest.raises(PushRefusedError) as raised:
        bodies(body, "application/json")
    assert raised.value.status == 400


DOCUMENTS = [
    b'{\n "a": 1,\n}',
    b'{\n "a": 1,\n "b": 2',
    b"{\n a: 1\n}",
    b'{\n"a\xff": 1\n}',
    b'\n\n{\n\n "a": tru\n}\n',
    b'{"a": 1, "b":\nfoo',
    b"[1,\n2\n",
    b'[\n{"a": 1},\n{"b": 2}',
    b'{"a": 1\n "b": 2\n}',
    b'[\n["a"],\n["b"]\n',
    b"[1,\n2,\n3",
    b'{"a": [1,\n2\n}',
]
TEXTS = [
    b"{\n server\n",
    b"[2026-01-01] INFO x\n[2026-01-02] y",
    b"[    0.000000] Linux\n[    0.1] b",
    b"{foo} bar\nx",
    b'{"a" x\n{"b": 1}\n{"c": 1}',
    b'[INFO] "quoted" 12\n next\n 1 \xff',
    b'["x"] y\nz',
    b'{"a": 1, }\nx',
    b'{"a": "cut short\n{"b": 1}',
    b'["a", "b"\n["c", "d"]\n["e", "f"]',
    b'{"a": 1\nERROR something\nmore',
    b'{"a": 1\n{"b": 2}',
]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    ("body", "is_document"), [*((body, True) for body in DOCUMENTS), *((body, False) for body in TEXTS)]
)
def test_a_broken_document_as_text_is_refused_and_never_cut_into_lines(
    body: bytes, is_document: bool, encoding: str
) -> None:
    kind = f"text/plain; charset={encoding}"
    if b"\xff" in body and encoding != "utf-8":
        return
    sent = body if encoding == "utf-8" else body.decode().encode(encoding)
    if is_document:
        with pytest.raises(
            PushRefusedError, match=r'(?s)body: no .* declare the source with Http\(body="lines"\)'
        ) as raised:
            bodies(sent, kind)
        assert raised.value.status == 400
    else:
        assert bodies(sent, kind) == [line for line in body.split(b"\n") if line.strip()]


def test_an_array_as_text_with_one_odd_element_is_an_array() -> None:
    found = parse_plain([(b"content-type", b"text/plain")], b'[\n{"a": 1},\n{"b": NaN}\n]', most_bytes=MOST)
    assert (list(found.bodies), [one.data for one in found.rejected]) == ([b'{"a": 1}'], [b'{"b": NaN}'])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("kind", [PLAIN, ABSENT, CURL, "application/octet-stream", "application/json", "text/json"])
def test_the_form_is_that_behind_the_mark(kind: str | None, encoding: str) -> None:
    for body, records in ((DOCUMENT, [DOCUMENT]), (JSON_LINES, JSON_LINES.splitlines())):
        assert bodies(body.decode().encode(encoding), kind) == records
    seq = '\x1e{"a": 1}\n'.encode(encoding)
    assert bodies(seq, "application/json-seq") == [b'{"a": 1}']


@pytest.mark.parametrize("charset", ["ucs-2", "unicode", "csUnicode", "cp037", "utf-7", "x-mine", "base64", "a\0b", ""])
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/x-ndjson"])
def test_an_unknown_charset_is_refused_and_never_guessed(kind: str, charset: str) -> None:
    with pytest.raises(PushRefusedError, match="is not read here") as raised:
        bodies(b'{"a": 1}', f"{kind}; charset={charset}")
    assert raised.value.status == 415
    assert bodies(b'{"a": 1}', f"{kind}; charset={charset}", form="whole") == [b'{"a": 1}']


def test_what_is_cut_short_or_wrong_in_a_sequence_refuses_no_other() -> None:
    body = b'\x1e{"a": 1}\n\x1e12\x1e{"b": \n\x1e"c"\n\x1etrue'
    found = parse_plain([(b"content-type", b"application/json-seq")], body, most_bytes=MOST)
    assert (found.bodies, found.content_type) == ([b'{"a": 1}', b'"c"'], "application/json")
    assert {one.data for one in found.rejected} == {b"12", b'{"b":', b"true"}
    for bad in (b'{"a": 1}', b"", b"x\x1e1\n", b"\x1e\x1e\n"):
        with pytest.raises(PushRefusedError):
            bodies(bad, "application/json-seq")


@pytest.mark.search
@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.recursive(st.none() | st.integers() | st.text(), st.lists), min_size=1), st.sampled_from([None, 1]))
def test_any_sequence_is_read_as_it_was_written(values: list[Any], indent: int | None) -> None:
    texts = [json.dumps(value, indent=indent).encode() for value in values]
    assert bodies(b"".join(b"\x1e%s\n" % text for text in texts), "application/json-seq") == texts


ENCODINGS = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252", "shift_jis", "utf-8")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_json_in_any_charset_is_kept_as_utf8(kind: str, encoding: str) -> None:
    text = '{"a": "x|y"}\n{"b": 2}\n'.replace("x|y", "ü" if encoding in ("latin-1", "cp1252") else "日")
    found = bodies(text.encode(encoding), f"{kind}; charset={encoding}")
    assert found == text.encode().splitlines()


# Bytes that are no character of an encoding, within a string.
ODD = {
    "utf-8": b"\xff",
    "utf-16-le": b"\x00\xd8",
    "utf-16-be": b"\xdc\x00",
    "utf-32-le": b"\x00\xd8\x00\x00",
    "utf-32-be": b"\xff\xff\xff\xff",
    "cp1252": b"\x81",
    "shift_jis": b"\x81",
    "gb18030": b"\xff",
    "ascii": b"\xff",
}


@pytest.mark.parametrize("encoding", ODD)
@pytest.mark.parametrize("odd_at", [[0], [1], [2], [0, 2]])
def test_one_element_that_is_none_of_its_charset_refuses_no_other(encoding: str, odd_at: list[int]) -> None:
    """Check that it is put aside with its bytes, and that what is kept says that it is UTF-8."""
    word = "a" if encoding == "ascii" else "ü" if encoding == "cp1252" else "日"
    elements = [f'{{"n": {n}, "x": "{word}"}}' for n in range(3)]
    sent = [
        one.encode(encoding)[: -len('"}'.encode(encoding))]
        + (ODD[encoding] if n in odd_at else b"")
        + '"}'.encode(encoding)
        for n, one in enumerate(elements)
    ]
    body = "[ ".encode(encoding) + ", ".encode(encoding).join(sent) + "]\n".encode(encoding)
    kind = f'application/json; version=1; charset="{encoding}"'
    found = parse_plain([(b"content-type", kind.encode())], body, most_bytes=MOST)
    assert found.bodies == [one.encode() for n, one in enumerate(elements) if n not in odd_at]
    assert [one.data for one in found.rejected] == [sent[n] for n in odd_at]
    assert all(
        f"element {n + 1}: no {'UTF-8' if encoding == 'utf-8' else encoding}" in one.why
        for n, one in zip(odd_at, found.rejected, strict=True)
    )
    stored = "application/json; version=1; charset=utf-8"
    assert found.content_type == (kind if encoding == "utf-8" else stored)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-ndjson", "application/json", "application/json-seq"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "shift_jis"])
def test_a_request_of_which_nothing_is_in_its_charset_is_refused(kind: str, encoding: str) -> None:
    seq = "\x1e" if kind.endswith("seq") else ""
    body = f'{seq}{{"a": "'.encode(encoding) + ODD[encoding] + '"}\n'.encode(encoding)
    if kind == "text/plain" and encoding == "shift_jis":
        # Text that is cut at bytes is kept as it is.
        assert bodies(body, f"{kind}; charset={encoding}") == [body[:-1]]
        return
    with pytest.raises(PushRefusedError) as raised:
        bodies(body, f"{kind}; charset={encoding}")
    assert raised.value.status == 400


def test_a_mark_decides_against_the_declared_order_of_bytes() -> None:
    for declared, sent in (("utf-16le", "utf-16-be"), ("utf-16be", "utf-16-le"), ("utf-32le", "utf-32-be")):
        body = "\ufefffünf\nsechs".encode(sent)
        assert bodies(body, f"text/plain; charset={declared}") == ["fünf".encode(), b"sechs"]


def test_lines_of_wide_text_are_cut_at_characters() -> None:
    text = "first line\nzweite ü\n\nlast"
    for charset, data in (
        ("utf-16", text.encode("utf-16")),
        ("utf-16le", text.encode("utf-16-le")),
        ("utf-16be", text.encode("utf-16-be")),
        ("utf-8", text.encode("utf-16")),
        ("utf-8", text.encode("utf-8-sig")),
    ):
        found = parse_plain([(b"content-type", f"text/plain; charset={charset}".encode())], data, most_bytes=MOST)
        assert found.bodies == [line.encode() for line in text.split("\n") if line]
        assert found.content_type == f"text/plain; charset={'utf-8' if data[:1] != b'f' else charset}".replace(
            "=utf-16le", "=utf-8"
        )


def test_a_line_of_wide_text_that_can_not_be_decoded_is_a_dead_letter_alone() -> None:
    data = "one\n".encode("utf-16-le") + b"\x00\xd8x\0\n\0" + "two".encode("utf-16-le")
    found = parse_plain([(b"content-type", b"text/plain; charset=utf-16le")], data, most_bytes=MOST)
    assert found.bodies == [b"one", b"two"]
    assert [(one.data, one.reason) for one in found.rejected] == [(b"\x00\xd8x\0", DeadLetterReason.INVALID_ENCODING)]


@pytest.mark.parametrize("end", ["", "\n", "\n{}\n"])
@pytest.mark.parametrize("kind", ["application/x-ndjson", "text/plain"])
@pytest.mark.parametrize(
    ("charset", "odd", "most"),
    [
        ("utf-16le", b"\x00\xd8", MOST),
        ("utf-16le", b"", 100_000),
        ("utf-16be", b"", 100_000),
        ("utf-32le", b"", 100_000),
        ("shift_jis", b"", 100_000),
        ("latin-1", b"", 100_000),
        ("utf-8", b"", 100_000),
    ],
)
def test_a_rejected_line_is_kept_whole_however_long_it_is(
    end: str, kind: str, charset: str, odd: bytes, most: int
) -> None:
    """Its sender is told that it is kept, and sends it to no other server."""
    line = ('"' + "x" * 400_000 + '"').encode(charset) + odd
    data = "{}\n".encode(charset) + line + end.encode(charset)
    found = parse_plain([(b"content-type", f"{kind}; charset={charset}".encode())], data, most_bytes=most)
    assert set(found.bodies) == {b"{}"}
    assert [one.data for one in found.rejected] == [line]
    if charset.startswith("utf-16") or odd:
        assert f"a line of {len(line)} bytes" in found.rejected[0].why


@pytest.mark.parametrize(
    ("kind", "one"),
    [
        ("text/plain; charset=utf-16le", b"\x00\xd8\n\0"),
        ("application/x-ndjson; charset=shift_jis", b"\x81\n"),
        ("application/x-ndjson", b"x\n"),
        ("application/json-seq", b"\x1e1"),
        ("application/json-seq", b"\x1ex\n"),
    ],
)
def test_many_bad_records_are_refused_as_soon_as_there_are_too_many(kind: str, one: bytes) -> None:
    # Cut to its end, each would take far longer than that.
    limits = ParsingLimits(most_values=10**9, seconds=20)
    with pytest.raises(PushRefusedError, match="more than 10000") as raised:
        parse_plain([(b"content-type", kind.encode())], one * 1_000_000, most_bytes=MOST, limits=limits)
    assert raised.value.status == 400


def test_lines_in_a_charset_whose_newline_is_a_byte_stay_as_they_are() -> None:
    data = "fünf\nsechs\n".encode("latin-1")
    found = parse_plain([(b"content-type", b"text/plain; charset=latin-1")], data, most_bytes=MOST)
    assert (found.bodies, found.content_type) == (data.splitlines(), "text/plain; charset=latin-1")


@pytest.mark.search
@settings(max_examples=examples(300), deadline=None)
@given(
    st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)).map(
        lambda inner: {"of": inner}
    ),
    st.sampled_from([None, 0, 2]),
    st.sampled_from([PLAIN, ABSENT, CURL]),
)
def test_a_document_is_one_record_however_it_is_written(document: Any, indent: int | None, kind: str | None) -> None:  # noqa: ANN401
    body = json.dumps(document, indent=indent).encode()
    assert bodies(body, kind) == [body]


# -- encodings of the body -------------------------------------------------------------------------------------------


@given(st.binary(max_size=2000), st.sampled_from([zlib.MAX_WBITS, -zlib.MAX_WBITS]), st.integers(0, 9))
def test_deflate_is_read_in_both_forms(data: bytes, form: int, level: int) -> None:
    deflater = zlib.compressobj(level, wbits=form)
    body = deflater.compress(data) + deflater.flush()
    assert decompressed(body, "deflate", most_bytes=MOST) == data
    for damaged in (body[:-1], body + b"x"):
        with contextlib.suppress(PushRefusedError):
            # The form without a checksum may be another body's.
            assert decompressed(damaged, "deflate", most_bytes=MOST) != data or form < 0


def test_brotli_is_read_and_a_bomb_of_each_encoding_is_refused() -> None:
    data = bytes(2**21)
    assert decompressed(pa.compress(b"one", "brotli", asbytes=True), "br", most_bytes=MOST) == b"one"
    for name, body in (("br", pa.compress(data, "brotli", asbytes=True)), ("deflate", zlib.compress(data))):
        with pytest.raises(PushRefusedError) as raised:
            decompressed(body, name, most_bytes=MOST)
        assert raised.value.status == 413


def test_of_several_encodings_that_are_listed_the_body_names_one() -> None:
    """Python's GELF clients list two, and use one."""
    for body in (gzip.compress(b"x y"), zlib.compress(b"x y")):
        assert decompressed(body, "gzip,deflate", most_bytes=MOST) == b"x y"
    one = gzip.compress(b"x")
    for body, listed in (
        (b"{}", "gzip, deflate"),
        (zlib.compress(one), "gzip, deflate"),
        (gzip.compress(zlib.compress(b"x", 2)), "gzip, deflate"),
        # A list says that all were applied, the first one first.
        (gzip.compress(zlib.compress(b"x", 2)), "deflate, gzip"),
        (gzip.compress(pa.compress(b"x", "brotli", asbytes=True)), "br, gzip"),
        (gzip.compress(pa.compress(b"x", "snappy", asbytes=True)), "snappy, gzip"),
        (one, "gzip, gzip"),
        (one, "identity, gzip"),
        (one, "gzip,"),
    ):
        with pytest.raises(PushRefusedError, match="Content-Encoding") as raised:
            decompressed(body, listed, most_bytes=MOST)
        assert raised.value.status == 415


# -- the declaration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"query_parameters": ["ack"]}, "other than ack"),
        ({"query_parameters": ["x"], "headers": ["X"]}, "both are attributes"),
        ({"headers": ["X-API-Key"]}, "holds secrets"),
        ({"body": "csv"}, "'auto', 'json', 'json_lines', 'lines' or 'whole'"),
    ],
)
def test_a_declaration_that_can_not_work_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Http(listen="127.0.0.1:0", **fields)
