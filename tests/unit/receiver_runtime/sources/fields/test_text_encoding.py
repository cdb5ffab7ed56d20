"""Check that text is cut at newlines only, in every encoding that is accepted."""

from __future__ import annotations

import codecs
import encodings.aliases
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.receivers.files.records import Limits, LineReader, Reading
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.fields.text_encoding import (
    LEAST_TRAIL_BYTE,
    by_mark,
    check_encoding,
    has_several_bytes,
    is_one_byte,
    unit_of,
)
from tests.support.searches import examples
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import copy_and_cut, follow

if TYPE_CHECKING:
    from pathlib import Path


def _names() -> list[str]:
    """Return the text encodings that every Python has."""
    found = set()
    for alias in set(encodings.aliases.aliases.values()):
        try:
            info = codecs.lookup(alias)
        except LookupError:
            # Of another operating system.
            continue
        if info._is_text_encoding and info.name not in ("mbcs", "oem", "idna", "punycode"):
            found.add(info.name)
    return sorted(found)


NAMES = _names()
ACCEPTED = [name for name in NAMES if is_one_byte(name) or has_several_bytes(name) or unit_of(name) > 1] + ["utf-8"]


@pytest.mark.parametrize("name", [name for name in NAMES if is_one_byte(name)])
def test_each_byte_is_a_character_and_one_is_the_newline(name: str) -> None:
    decoded = [bytes([octet]).decode(name, "ignore") for octet in range(256)]
    assert all(len(text) <= 1 for text in decoded)
    assert [octet for octet, text in enumerate(decoded) if text == "\n"] == [10]
    assert [octet for octet, text in enumerate(decoded) if text == "\0"] in ([0], [])


@pytest.mark.parametrize("name", [name for name in NAMES if has_several_bytes(name)])
def test_no_byte_below_0x30_is_part_of_a_longer_character(name: str) -> None:
    for last in range(LEAST_TRAIL_BYTE):
        assert bytes([last]).decode(name) == chr(last)
        for first in range(0x80, 0x100):
            for start in (bytes([first]), bytes([first, 0xA1]), bytes([first, 0x30, 0x81])):
                assert _is_cut_rightly(start, last, name), (start, last)


def _is_cut_rightly(start: bytes, last: int, encoding: str) -> bool:
    """Return whether the byte stands for itself, or the decoder finds an error before it."""
    try:
        text = (start + bytes([last]) + b"AA").decode(encoding)
    except UnicodeDecodeError as error:
        return error.start < len(start)
    return text.endswith(chr(last) + "AA")


@pytest.mark.parametrize("name", [*NAMES, "no such one", "a\0b", "base64", "rot13"])
def test_every_other_encoding_is_refused_with_those_that_are_not(name: str) -> None:
    if name.removesuffix("-sig") in ACCEPTED:
        assert check_encoding(name) in ACCEPTED
        return
    with pytest.raises(ValueError, match=r"can't be cut into lines: use utf-8, utf-16"):
        check_encoding(name)


def test_a_stream_that_is_cut_at_bytes_takes_no_units() -> None:
    with pytest.raises(ValueError, match="can't be cut at bytes"):
        SocketText(host="a", port=1, encoding="utf-16")


def _lines(data: bytes, encoding: str, limits: Limits) -> tuple[list[tuple[str, int]], list[bytes]]:
    reader, reading = LineReader(encoding=encoding, max_record_bytes=2**20), Reading("a")
    lines: list[tuple[str, int]] = []
    letters: list[bytes] = []
    for _ in range(2 * len(data) + 10):
        before = reading.position
        part = reader.read(reading, _Bytes(data), limits, path="a", modified_ms=1, ends=True)
        letters += [letter.data for letter in part.letters]
        if part.batch is not None:
            part.batch.validate(full=True)
            lines += zip(part.batch.column("value").to_pylist(), part.batch.column("offset").to_pylist(), strict=True)
        if not part.more and reading.position == before:
            assert before == len(data)
            return lines, letters
    raise AssertionError("it does not come to an end")


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]

    def next_data(self, offset: int) -> int:
        return offset

    def close(self) -> None:
        pass


# U+0A00 and U+000A side by side have a newline's bytes across two units.
TEXT = st.text(
    st.one_of(
        st.sampled_from("\n\r\u0a00\u000a\u0a0a\u010a\ua000\U0001f600"), st.characters(exclude_categories=["Cs"])
    ),
    max_size=30,
).map(lambda text: text.replace("\0", "0").removeprefix("\ufeff"))


@pytest.mark.search
@settings(max_examples=examples(400), deadline=None)
@given(TEXT, st.sampled_from(ACCEPTED), st.sampled_from([(2**20, 2**20), (3, 1), (64, 2)]), st.booleans())
def test_a_file_in_any_encoding_gives_its_lines_at_their_places(
    text: str, encoding: str, limits: tuple[int, int], with_mark: bool
) -> None:
    text = text.encode(encoding, "ignore").decode(encoding)
    mark = ""
    if encoding.startswith("utf"):
        mark = "\ufeff" if with_mark else ""
    exact = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(encoding, encoding)
    text = text.removeprefix("\ufeff")
    *whole, rest = text.split("\n")
    expected, at = [], len(mark.encode(exact))
    for line in whole:
        expected.append((line.removesuffix("\r"), at))
        at += len(f"{line}\n".encode(exact))
    if rest:
        expected.append((rest, at))
    lines, letters = _lines((mark + text).encode(exact), encoding, Limits(*limits))
    assert lines == expected
    assert letters == []


def test_a_line_that_can_not_be_decoded_is_a_dead_letter_alone() -> None:
    bad = b"\x00\xd8b\0"
    data = "one\n".encode("utf-16-le") + bad + "\ntwo\n".encode("utf-16-le")
    lines, letters = _lines(data, "utf-16-le", Limits(2**20, 2**20))
    assert lines == [("one", 0), ("two", 8 + len(bad) + 2)]
    assert letters == [bad]


@pytest.mark.parametrize(
    ("head", "declared", "expected"),
    [
        (b"\xef\xbb\xbfa", "utf-8", ("utf-8", 3)),
        (b"\xff\xfea\0", "utf-8", ("utf-16-le", 2)),
        (b"\xfe\xff\0a", "utf-8", ("utf-16-be", 2)),
        (b"\xff\xfe\0\0", "utf-8", ("utf-32-le", 4)),
        (b"\xff\xfe\0\0", "utf-16", ("utf-16-le", 2)),
        (b"\xfe\xff\0a", "utf-16", ("utf-16-be", 2)),
        (b"a\0b\0", "utf-16", ("utf-16-le", 0)),
        (b"\xfe\xff\0a", "utf-16-be", ("utf-16-be", 2)),
        # In the declared order of bytes the mark would be no character.
        (b"\xff\xfea\0", "utf-16-be", ("utf-16-le", 2)),
        (b"\xfe\xff\0a", "utf-16-le", ("utf-16-be", 2)),
        (b"\0\0\xfe\xff", "utf-32-le", ("utf-32-be", 4)),
        (b"\xff\xfe\0\0", "utf-16-be", ("utf-16-le", 2)),
        (b"\xef\xbb\xbfa", "utf-16-le", ("utf-16-le", 0)),
        (b"\xef\xbb\xbfa", "iso8859-1", ("iso8859-1", 0)),
        (b"", "utf-8", ("utf-8", 0)),
    ],
)
def test_a_mark_decides_between_unicodes_encodings(head: bytes, declared: str, expected: tuple[str, int]) -> None:
    assert by_mark(head, declared) == expected


def test_a_followed_file_of_windows_is_read_through_a_rotation(tmp_path: Path) -> None:
    log = Log()
    path = tmp_path / "a.log"
    path.write_bytes("one\r\ntwo\r\n".encode("utf-16"))
    reader = follow(tmp_path, log)
    reader.run()
    with path.open("ab") as file:
        file.write("three\r\n".encode("utf-16-le"))
    reader.run()
    copy_and_cut(path, tmp_path / "a.log.1")
    # The next content has another mark, and another encoding.
    path.write_bytes("\ufefffour\n".encode())
    reader.run(5)
    again = follow(tmp_path, log)
    with path.open("ab") as file:
        file.write("fünf\n".encode())
    again.run(5)
    assert log.values == ["one", "two", "three", "four", "fünf"]
