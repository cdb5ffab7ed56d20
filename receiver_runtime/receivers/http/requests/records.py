"""Cuts the body of a plain request into records: one record, a JSON array, lines of JSON, or lines of text.

Pure functions of a request. Records are handed on as they were sent, byte for byte; JSON is checked and never kept as
objects. Where some of the records are invalid, only these are rejected; a request without any valid record is refused
as a whole.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, NoReturn

import msgspec
import pyarrow as pa

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.framing import Piece
from receiver_runtime.receivers.http.requests.json_spans import UnknownSpansError, array_elements
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED, ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import (
    MOST_REJECTED,
    PushRefusedError,
    RejectedRecord,
    header,
    media_type,
)
from receiver_runtime.receivers.http.requests.text_bodies import (
    UTF8,
    encoding_of,
    in_utf8,
    json_text,
    looked_at,
)
from receiver_runtime.receivers.lines import LineFraming, split_at
from receiver_runtime.receivers.wide_lines import WideLineFraming
from receiver_runtime.sources.fields.text_encoding import check_encoding, is_one_byte, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.text_bodies import JsonText

_NDJSON = frozenset(
    {
        "application/x-ndjson",
        "application/ndjson",
        "application/jsonl",
        "application/jsonlines",
        "application/x-jsonlines",
        "application/json-lines",
        "application/x-jsonl",
        "application/x-json-stream",
        "application/stream+json",
        "text/x-ndjson",
        "text/ndjson",
        "text/jsonl",
        "text/x-jsonl",
    }
)
_JSON = frozenset({"application/json", "text/json", "application/x-json", "text/x-json"})
# Types that many senders give to JSON: none at all, SNS's, curl's where nothing else is said, and HTTP's for bytes.
_DOUBTFUL = frozenset({"", "text/plain", "application/x-www-form-urlencoded", "application/octet-stream"})
_MAY_BE_DOCUMENT = frozenset({b"{", b"["})
_LOOK_LINES = 2  # how many lines are looked at to tell JSON lines from a document
# The first bytes of byte-order marks.
_MARKS = frozenset({b"\xef", b"\xfe", b"\xff", b"\0"})
# How compressed bodies begin whose sender did not say so: gzip, zstd, bzip2, xz, lz4, zip. No text begins so.
_COMPRESSED = re.compile(rb"\x1f\x8b\x08|\x28\xb5\x2f\xfd|BZh[1-9]1AY&SY|\xfd7zXZ\x00|\x04\x22\x4d\x18|PK\x03\x04")
_BLANKS = b" \t\r\n"
_SEPARATOR = b"\x1e"
_ENDS = frozenset({b"", *(bytes([octet]) for octet in _BLANKS + b'}]"')})
_LAST_BLANK, _OPENING, _CLOSING = b" {}"
_BLANK = re.compile(r"[ \t\r\n]*")
_AT_BYTE = re.compile(r"\(byte (\d+)\)")  # in the parser's words
_VALUE = frozenset(b'"0123456789')
# What a line of a document begins with, in which something is missing at the end of the line before.
_GOES_ON = frozenset((b'"', b"}", b"]", b",", b":"))
# Checks values and builds none. It takes no NaN, and no half of a surrogate pair.
_UNBUILT = msgspec.json.Decoder(msgspec.Raw)
_LEAST_AT_ONCE = 50  # fewer lines are parsed faster one by one
_SHORT_BODY = 2**12  # bytes of a body up to which its lines are counted before anything else
_CUT_BYTES = 2**16  # bytes of lines in another encoding that are cut before the time is checked again
_CHECK_EVERY = 1024  # how many records to cut before the time is checked again


class NoRecordError(PushRefusedError):
    """Correct the records: none of a request's is one. ``rejected`` has all of them."""

    def __init__(self, status: int, why: str, rejected: Sequence[RejectedRecord]) -> None:
        super().__init__(status, why)
        self.rejected = rejected


@dataclass(frozen=True, slots=True)
class Plain:
    """Records of one content type, without keys of their own. They are a column where they were cut all at once."""

    bodies: Sequence[bytes] | pa.BinaryArray
    content_type: str | None
    rejected: Sequence[RejectedRecord] = field(default=())
    #: The request's key, if it is in the body; or one for each record, where records have keys of their own.
    key: str | None = None
    keys: Sequence[str | None] | None = None


def parse_plain(
    headers: Headers, body: bytes, *, most_bytes: int, form: str = "auto", limits: ParsingLimits = UNLIMITED
) -> Plain:
    """Return the records of a request whose form is given by its media type, its bytes, or its source.

    ``application/json`` is one record, or an array of records. JSON lines and ``text/plain`` are one record per line,
    without blank lines; a JSON sequence is one per text of it. Any other body is one record, as it is. ``form`` is the
    source's ``body``.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: nothing in it can be a record.
    """
    content_type = header(headers, b"content-type")
    kind, charset = media_type(content_type)
    if form == "auto":
        form = _form_of(kind, charset, body)
        if form == "json" and kind in _DOUBTFUL:
            return _guessed_json(kind, charset, content_type, body, most_bytes, limits)
    if form == "whole":
        if not body:
            raise _empty()
        if len(body) > most_bytes:
            raise PushRefusedError(413, f"body: a record of {len(body)} bytes, max_record_bytes is {most_bytes}")
        return Plain([body], content_type)
    _refuse_compressed(body)
    if form in _WHOLE_JSON:
        return _whole_json(form, json_text(kind, charset, body), content_type, most_bytes, limits)
    encoding, mark = encoding_of(kind, charset, body)
    body = body[mark:]
    if not body:
        raise _empty()
    is_json = form == "json_lines"
    unreadable: Sequence[RejectedRecord] = ()
    if unit_of(encoding) > 1 or (is_json and encoding != "utf-8"):
        body, unreadable = _lines_in_utf8(body, encoding, most_bytes, limits)
        content_type = in_utf8(content_type)
    if is_json and kind in _NDJSON:
        content_type = "application/json"
    found = _lines(body, content_type, most_bytes, limits, is_json=is_json, unreadable=unreadable)
    return replace(found, rejected=[*unreadable, *found.rejected]) if unreadable else found


def _refuse_compressed(body: bytes) -> None:
    """Refuse a compressed body, whatever its type says: cut into lines, its bytes would be stored as nonsense."""
    if _COMPRESSED.match(body):
        raise PushRefusedError(
            415, "body: it is compressed, and has no lines: send its Content-Encoding, or declare body='whole'"
        )


def _guessed_json(
    kind: str, charset: str | None, content_type: str | None, body: bytes, most_bytes: int, limits: ParsingLimits
) -> Plain:
    """Return the records of a body that is JSON by its bytes alone; a refusal says how to have it read otherwise."""
    try:
        return _whole_json("json", json_text(kind, charset, body), content_type, most_bytes, limits)
    except PushRefusedError as error:
        if error.status != HTTPStatus.BAD_REQUEST:
            raise
        form = "lines" if kind == "text/plain" else "whole"
        raise PushRefusedError(
            error.status,
            f"{error}. It is {kind or 'of no type'}, and begins as JSON does: if it is none, declare the source with "
            f'Http(body="{form}")',
        ) from error


def _whole_json(form: str, text: JsonText, content_type: str | None, most_bytes: int, limits: ParsingLimits) -> Plain:
    if not text.body:
        raise _empty()
    if text.is_decoded:
        content_type = in_utf8(content_type)
    try:
        found = _WHOLE_JSON[form](text.body, content_type, most_bytes, limits)
    except PushRefusedError as error:
        if text.fault is not None and error.status == HTTPStatus.BAD_REQUEST:
            raise PushRefusedError(error.status, text.fault) from error
        if isinstance(error, NoRecordError):
            error.rejected = text.as_sent(error.rejected)
        raise
    return replace(found, rejected=text.as_sent(found.rejected)) if found.rejected else found


def lines_at_once(headers: Headers, body: bytes, *, most_bytes: int, form: str = "auto") -> Plain | None:
    """Return the records of a body of lines that vector code cuts and checks as a whole, which takes microseconds.

    None: it is no such body, and ``parse_plain`` says what it is.
    """
    content_type = header(headers, b"content-type")
    kind, charset = media_type(content_type)
    is_json = form == "json_lines" or (form == "auto" and kind in _NDJSON)
    if not is_json and form != "lines" and (form != "auto" or kind != "text/plain" or body[:1] in _MAY_BE_DOCUMENT):
        return None
    # Text in another encoding is cut at the same bytes, if its newline is one of them.
    if (
        body[:1] in _MARKS
        or _COMPRESSED.match(body)
        or (charset not in UTF8 and (is_json or not _is_cut_at_bytes(charset)))
    ):
        return None
    column = lines_column(body, most_bytes, is_json=is_json)
    return (
        None if column is None else Plain(column, "application/json" if is_json and kind in _NDJSON else content_type)
    )


def _known_form(kind: str) -> str | None:
    """Return the form that a media type says; None: senders are known to give it to bodies of any form."""
    if kind in _NDJSON:
        return "json_lines"
    if kind.endswith(("/json-seq", "+json-seq")):
        return "json_sequence"
    if kind in _JSON or kind.endswith("+json"):
        return "json"
    return None if kind in _DOUBTFUL else "whole"


def _form_of(kind: str, charset: str | None, body: bytes) -> str:
    """Return the form of a body by its media type; where senders are known to give a wrong one, by its bytes too."""
    if (known := _known_form(kind)) is not None:
        return known
    body = looked_at(charset, body)
    start = body.lstrip(_BLANKS)[:1]
    if start in _MAY_BE_DOCUMENT:
        lines = [stripped for line in body.split(b"\n", _LOOK_LINES) if (stripped := line.strip(_BLANKS))]
        is_line = _is_json(lines[0])
        if not is_line and _is_json(body):
            return "json"
        is_line = is_line or (start == b"{" and _are_lines(body))
        if is_line and kind != "text/plain":
            return "json_lines" if len(lines) > 1 and start == b"{" else "json"
        if not is_line and kind == "text/plain" and _begins_document(body):
            return "json"
    return "lines" if kind == "text/plain" else "whole"


def _is_json(data: bytes) -> bool:
    return _json_until(data) is None


def _json_until(data: bytes) -> int | None:
    """Return up to where data are as JSON is, or None where they are JSON to their end."""
    try:
        if not data.isascii():
            data.decode()
        _UNBUILT.decode(data)
    except UnicodeDecodeError as error:
        before = _json_until(data[: error.start])
        return error.start if before is None else before
    except RecursionError:
        return 0
    except msgspec.DecodeError as error:
        place = _AT_BYTE.search(str(error))
        return len(data) if place is None else int(place[1])
    return None


def _begins_document(body: bytes) -> bool:
    """Return whether a body that is no JSON is one document that is wrong somewhere, and not lines of text.

    It has a name or a value and goes on behind its first line as JSON does, or its brackets have lines of their own.
    """
    begin = body[: _json_until(body)]
    first, *others = (line.strip(_BLANKS) for line in body.strip(_BLANKS).split(b"\n", _LOOK_LINES + 1))
    # Lines of JSON, the first of which is cut short; a bracket alone begins a document.
    if first != b"[" and any(line[:1] == first[:1] and _is_json(line) for line in others):
        return False
    if b"\n" in begin.lstrip(_BLANKS) and not _VALUE.isdisjoint(begin):
        # A fault at a line's beginning: where something is missing before a name or a bracket, and not before text.
        return b"\n" in begin.strip(_BLANKS) or body[len(begin) :].lstrip(_BLANKS)[:1] in _GOES_ON
    last = body.strip(_BLANKS).rpartition(b"\n")[2].strip(_BLANKS)
    return (first, last) in ((b"{", b"}"), (b"[", b"]"))


def _is_cut_at_bytes(charset: str | None) -> bool:
    try:
        return unit_of(check_encoding(charset or "")) == 1
    except ValueError:
        return False


def _lines_in_utf8(
    body: bytes, encoding: str, most_bytes: int, limits: ParsingLimits
) -> tuple[bytes, Sequence[RejectedRecord]]:
    """Return the lines of a body in another encoding, and those that are none in it."""
    framing: LineFraming
    # Its sender is told that it is kept, and may have no other copy: a dead letter is whole.
    whole_letters = len(body)
    if unit_of(encoding) > 1:
        framing = WideLineFraming(encoding=encoding, max_record_bytes=most_bytes, letter_bytes=whole_letters)
    else:
        framing = LineFraming(
            encoding=encoding,
            one_byte=is_one_byte(encoding),
            max_record_bytes=most_bytes,
            letter_bytes=whole_letters,
        )
    ends = framing.ends(body) + len(framing.delimiter)
    whole = int(ends[-1]) if ends.size else 0
    lines: list[bytes] = []
    rejected: list[RejectedRecord] = []
    begin = 0
    while begin < len(body):
        limits.check()
        # Lines that can't be decoded take longest, and their number is bounded.
        place = min(int(ends.searchsorted(begin + _CUT_BYTES)), ends.size - 1)
        stop = int(ends[place]) if begin < whole else len(body)
        piece = body[begin:stop]
        cut = framing.cut_placed(piece)[0] if begin < whole else framing.cut([Piece(piece, is_last=True)])
        if cut.records is not None:
            lines += [line.as_buffer().to_pybytes() for line in cut.records.cast(pa.binary())]
        rejected += [
            RejectedRecord(letter.data, letter.reason, f"a line of {len(letter.data)} bytes: {letter.reason.label}")
            for letter in cut.dead_letters
        ]
        _check_rejected(len(rejected), "lines", rejected)
        begin = stop
    return b"\n".join(lines), rejected


def _check_rejected(count: int, what: str, rejected: Sequence[RejectedRecord]) -> None:
    if count > MOST_REJECTED:
        raise PushRefusedError(
            400,
            f"body: more than {MOST_REJECTED} {what} are not records; {rejected[0].why}: correct it, or send less at "
            "once",
        )


def _empty() -> PushRefusedError:
    return PushRefusedError(400, "body: it is empty: send at least one record")


def _lines(
    body: bytes,
    content_type: str | None,
    most_bytes: int,
    limits: ParsingLimits,
    *,
    is_json: bool,
    unreadable: Sequence[RejectedRecord] = (),
) -> Plain:
    """Return the lines of a body as records. ``unreadable``: others of its lines, which are none."""
    if (column := lines_column(body, most_bytes, is_json=is_json)) is not None:
        return Plain(column, content_type)
    limits.check_lines(body)
    lines = [line.removesuffix(b"\r") for line in body.split(b"\n")]
    if is_json:
        good = [stripped for line in lines if (stripped := line.strip(_BLANKS))]
        if (
            len(good) >= _LEAST_AT_ONCE
            and max(map(len, good)) <= most_bytes
            and all(line[:1] == b"{" and line[-1:] == b"}" for line in good)
            and _are_objects(len(good), body)
        ):
            return Plain(good, content_type)
    return _one_by_one(lines, content_type, most_bytes, limits, is_json=is_json, others=unreadable)


def _sequence(body: bytes, _: str | None, most_bytes: int, limits: ParsingLimits) -> Plain:
    """Return the texts of a JSON sequence (RFC 7464): each follows a record separator, and ends with a newline."""
    if not body.lstrip(_BLANKS).startswith(_SEPARATOR):
        raise PushRefusedError(400, "body: a JSON sequence begins with a record separator (0x1E): send one")
    limits.check_lines(body, _SEPARATOR, "texts of a JSON sequence")
    texts = body.split(_SEPARATOR)
    # A number or a name that ends with the body, or at the next text, may have lost its end.
    cut = [text for text in texts if text and text[-1:] not in _ENDS]
    rejected = [
        RejectedRecord(text, DeadLetterReason.UNPARSABLE, f"{text[-40:]!r} is cut short")
        for text in cut[: MOST_REJECTED + 1]
    ]
    _check_rejected(len(rejected), "texts", rejected)
    if cut:
        texts = [text for text in texts if text[-1:] in _ENDS]
    found = _one_by_one(texts, "application/json", most_bytes, limits, is_json=True, others=rejected)
    return replace(found, rejected=[*rejected, *found.rejected]) if rejected else found


def _one_by_one(
    found: Iterable[bytes],
    content_type: str | None,
    most_bytes: int,
    limits: ParsingLimits,
    *,
    is_json: bool,
    others: Sequence[RejectedRecord] = (),
    name: str = "line",
) -> Plain:
    """Return the lines, or elements, as they came; each that is none is rejected, and refuses no other.

    ``others`` were rejected before: without any good record, the request is refused.
    """
    good: list[bytes] = []
    rejected: list[RejectedRecord] = []
    for number, whole in enumerate(found, start=1):
        if not number % _CHECK_EVERY:
            limits.check()
        one = whole.strip(_BLANKS) if is_json else whole
        if not one.strip(_BLANKS):
            continue
        if (fault := fault_of(one, most_bytes, limits, is_json=is_json)) is None:
            good.append(one)
            continue
        reason, why = fault
        rejected.append(RejectedRecord(one, reason, f"{name} {number}: {why}"))
        _check_rejected(len(rejected), f"{name}s", rejected)
    if not good:
        raise _no_record([*others, *rejected], name)
    return Plain(good, content_type, rejected)


def _no_record(rejected: Sequence[RejectedRecord], name: str) -> PushRefusedError:
    if not rejected:
        found = "there are only blank lines" if name == "line" else "the array is empty"
        return PushRefusedError(400, f"body: {found}: send at least one record")
    is_large = all(one.reason is DeadLetterReason.RECORD_TOO_LARGE for one in rejected)
    why = f"body: none of {len(rejected)} {name}s is a record; {rejected[0].why}: correct it"
    return NoRecordError(413 if is_large else 400, why, rejected)


def lines_column(body: bytes, most_bytes: int, *, is_json: bool) -> pa.BinaryArray | None:
    """Return the lines of a body of the usual form as a column, each whole line a record.

    None: the body has another form, and may be good or bad; the caller must check it line by line.
    """
    end = len(body) - body.endswith(b"\n")
    if (len(body) < _SHORT_BODY and body.count(b"\n", 0, end) + 1 < _LEAST_AT_ONCE) or b"\r" in body:
        return None
    split = split_at(body[:end], b"\n")
    begins, ends = split.offsets[:-1], split.offsets[1:]
    lengths = ends - begins
    if len(lengths) < _LEAST_AT_ONCE or lengths.min() == 0 or lengths.max() > most_bytes:
        return None
    firsts = split.text[begins]
    if is_json:
        lasts = split.text[ends - 1]
        good = (firsts == _OPENING).all() and (lasts == _CLOSING).all() and _are_objects(len(lengths), body)
    else:
        good = not (firsts <= _LAST_BLANK).any()
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), [None, *split.buffers]) if good else None


def _are_objects(lines: int, body: bytes) -> bool:
    """Return whether the parser finds one valid JSON object in each of ``lines`` lines. False: check each line.

    Every line must begin and end with a brace. The parser does not know lines. But a line that begins with a brace
    begins at the top level: the line before it ended with a brace, and within a value no opening brace may follow one.
    So each line has at least one object, and if there are as many objects as lines, each line has exactly one.
    """
    try:
        # The parser checks no UTF-8 in what it only skips.
        if not body.isascii():
            body.decode()
        return len(_UNBUILT.decode_lines(body)) == lines
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return False


def fault_of(
    record: bytes, most_bytes: int, limits: ParsingLimits, *, is_json: bool
) -> tuple[DeadLetterReason, str] | None:
    """Return why a record is none, or None. Raises ParsingStoppedError: the time is over, or the sender has left."""
    if len(record) > most_bytes:
        return DeadLetterReason.RECORD_TOO_LARGE, f"{len(record)} bytes, max_record_bytes is {most_bytes}"
    return _json_fault_of(record, limits) if is_json else None


def _json_fault_of(record: bytes, limits: ParsingLimits) -> tuple[DeadLetterReason, str] | None:
    try:
        # The objects of one record are gone before the next one is parsed, so they are counted by record.
        limits.check_json(record)
        _DECODER.decode(record.decode())
    except PushRefusedError as error:
        return DeadLetterReason.RECORD_TOO_LARGE, str(error).removeprefix("body: ")
    except UnicodeDecodeError as error:
        why = f"no UTF-8 at byte {error.start}"
    except RecursionError:
        why = "nested too deeply"
    except ValueError as error:
        why = f"no JSON: {error}"
    else:
        return None
    return DeadLetterReason.UNPARSABLE, why


def _json(body: bytes, content_type: str | None, most_bytes: int, limits: ParsingLimits) -> Plain:
    if body.lstrip(_BLANKS)[:1] == b"[":
        return _array(body, content_type, most_bytes, limits)
    try:
        return Plain([_value(body, most_bytes, limits)], content_type)
    except PushRefusedError:
        if _are_lines(body):
            return _lines(body, content_type, most_bytes, limits, is_json=True)
        raise


def _value(body: bytes, most_bytes: int, limits: ParsingLimits) -> bytes:
    limits.check_json(body)
    try:
        text = body.decode()
        at = _after_blank(text, 0)
        _, end = _DECODER.raw_decode(text, at)
    except UnicodeDecodeError as error:
        raise PushRefusedError(400, f"body: no UTF-8 at byte {error.start}: send JSON in UTF-8") from error
    except RecursionError as error:
        raise PushRefusedError(400, "body: the JSON is nested too deeply: make it flatter") from error
    except ValueError as error:
        raise PushRefusedError(
            400, f"body: no JSON: {error}: correct it, or send lines of JSON as application/x-ndjson"
        ) from error
    if _after_blank(text, end) != len(text):
        raise PushRefusedError(
            400,
            f"body: there is more behind the JSON value, at character {end}: send one value, an array of them, or "
            "lines of them as application/x-ndjson",
        )
    record = text[at:end].encode()
    if len(record) > most_bytes:
        raise PushRefusedError(413, f"body: a record of {len(record)} bytes, max_record_bytes is {most_bytes}")
    return record


def _are_lines(body: bytes) -> bool:
    """Return whether a body that is no JSON as a whole is written as one object per line.

    The first line may be the odd one, if two follow that are not.
    """
    first, *others = (line.strip(_BLANKS) for line in body.lstrip(_BLANKS).split(b"\n", _LOOK_LINES + 1))

    def is_object(line: bytes) -> bool:
        return line[:1] == b"{" and line[-1:] == b"}"

    return any(others) and (is_object(first) or (len(others) > 1 and all(map(is_object, others[:_LOOK_LINES]))))


def _array(body: bytes, content_type: str | None, most_bytes: int, limits: ParsingLimits) -> Plain:
    """Return each element as it stands there. If the array is not good as a whole, each element is checked alone."""
    try:
        elements, are_good = array_elements(body, limits)
    except UnknownSpansError as error:
        try:
            # It has the parser's reason, and where.
            _value(body, most_bytes, limits)
        except PushRefusedError as parsers:
            # Too many values to make objects of: fewer would not be JSON, either.
            if parsers.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                raise
        raise PushRefusedError(400, f"body: no JSON: {error}: correct it") from error
    if are_good and elements and max(map(len, elements)) <= most_bytes:
        return Plain(elements, content_type)
    return _one_by_one(elements, content_type, most_bytes, limits, is_json=True, name="element")


def _after_blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return at if match is None else match.end()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_WHOLE_JSON = {"json": _json, "json_sequence": _sequence}
# Numbers are checked, not converted: a number of very many digits is JSON, too.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_constant)
