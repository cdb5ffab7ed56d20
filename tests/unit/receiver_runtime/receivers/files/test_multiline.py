"""Check that lines that belong together make one record, however files are read, and that none is lost or doubled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.files.content import OpenedFile
from receiver_runtime.receivers.files.declaration import FileLines, FollowedFiles
from receiver_runtime.receivers.files.records import Limits, LineReader, Reading
from receiver_runtime.sources.fields.multiline import Multiline
from receiver_runtime.sources.source import SourceError
from tests.support.searches import examples
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write
from tests.unit.receiver_runtime.receivers.files.test_arriving import arriving, put

if TYPE_CHECKING:
    from pathlib import Path

MOST = 20
LINES = 4
START = Multiline(start="^b", max_lines=LINES)
CONTINUATION = Multiline(continuation=r"^[\t ]", max_lines=LINES)
JOINED = {
    "java": (
        "2026-11-30 12:00:00 ERROR order 7 failed",
        "com.shop.OrderException: no such item",
        "\tat com.shop.Orders.find(Orders.java:12)",
        "\tat java.base/java.lang.Thread.run(Thread.java:1583)",
        "Caused by: java.io.IOException: reset",
        "\tSuppressed: java.lang.RuntimeException: close",
        "\t\tat com.shop.Orders.close(Orders.java:20)",
        "\t... 3 common frames omitted",
    ),
    "python": (
        "ERROR:shop:order 7 failed",
        "Traceback (most recent call last):",
        '  File "/srv/shop.py", line 3, in find',
        "    raise KeyError(7)",
        "KeyError: 7",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "/srv/shop.py", line 9, in take',
        "shop.errors.OrderError: no such item",
    ),
    "go": (
        "panic: runtime error: index out of range [5] with length 3",
        "",
        "goroutine 1 [running]:",
        "main.(*Shop).find(0xc000012345, 0x5)",
        "\t/srv/main.go:8 +0x1d",
        "github.com/shop/orders.Take[...](0x1)",
        "\t/srv/orders/take.go:19 +0x2f",
        "created by main.main in goroutine 1",
        "\t/srv/main.go:30 +0x40",
        "exit status 2",
    ),
}


def model(data: bytes, multiline: Multiline) -> tuple[list[tuple[str, int]], list[bytes]]:
    """Return records with their places, and dead letters, line by line."""
    records: list[tuple[str, int]] = []
    letters: list[bytes] = []
    lines = 0
    at = 0
    for raw in data.splitlines(keepends=True):
        line = raw.removesuffix(b"\n")
        try:
            text = line.removesuffix(b"\r").decode() if raw.endswith(b"\n") else line.decode()
            is_bad = len(line.removesuffix(b"\r")) > MOST
        except UnicodeDecodeError:
            is_bad = True
        if is_bad:
            letters.append(line)
            lines = 0
        else:
            is_first = (re.search(multiline.pattern, text) is not None) == (multiline.start is not None)
            if lines and not is_first and lines < LINES and len(f"{records[-1][0]}\n{text}".encode()) <= MOST:
                records[-1] = f"{records[-1][0]}\n{text}", records[-1][1]
                lines += 1
            else:
                records.append((text, at))
                lines = 1
        at += len(raw)
    return records, letters


_LINE = st.one_of(
    st.sampled_from([b"b", b" a", b"", b"bb", b" \xff", b"b" * (MOST + 1), b" " * MOST, b"\te\xcc\x81", b"c\r", b" "]),
    st.binary(max_size=MOST + 2).map(lambda data: re.sub(rb"[\n\r\0]", b"-", data)),
)


@settings(max_examples=examples(100))
@given(
    lines=st.lists(_LINE, max_size=14),
    ending=st.sampled_from([b"\n", b""]),
    multiline=st.sampled_from([START, CONTINUATION]),
    nbytes=st.sampled_from([1, 7, 50, 1000]),
    most=st.sampled_from([1, 2, 1000]),
    cuts=st.lists(st.integers(0, 200), max_size=4),
)
@example([b"b", b" a", b"b" * 100, b" a"], b"\n", START, 1, 1000, [3])
@example([b"b"] + [b" a"] * 30, b"", CONTINUATION, 1, 1, [3, 5, 9, 40])
def test_records_are_the_same_however_a_file_grows_and_is_read(
    lines: list[bytes], ending: bytes, multiline: Multiline, nbytes: int, most: int, cuts: list[int]
) -> None:
    data = b"\n".join(lines) + ending
    reader = LineReader(encoding="utf-8", max_record_bytes=MOST, multiline=multiline)
    records: list[tuple[str, int]] = []
    letters: list[bytes] = []
    position = 0
    for size in [*sorted(cuts), len(data)]:
        # As after a kill: only the position is known.
        reading = Reading("a", position=position)
        ends = size >= len(data)
        for _ in range(4 * len(data) + 20):
            before = reading.position, reading.large
            part = reader.read(
                reading,
                OpenedFile(pa.BufferReader(data[:size])),
                Limits(nbytes, most),
                path="a",
                modified_ms=1,
                ends=ends,
            )
            letters += [letter.data for letter in part.letters]
            if part.batch is not None:
                part.batch.validate(full=True)
                assert part.batch.num_rows <= most
                values, offsets = part.batch.column("value").to_pylist(), part.batch.column("offset").to_pylist()
                records += zip(values, offsets, strict=True)
            if not part.more and (reading.position, reading.large) == before:
                break
            position = reading.position
        else:
            raise AssertionError("it does not come to an end")
    assert (records, letters) == model(data, multiline)


@pytest.mark.parametrize("language", JOINED)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_the_stack_traces_of_languages_are_one_record_each(tmp_path: Path, language: str, encoding: str) -> None:
    log = Log()
    trace = "\n".join(JOINED[language])
    text = f"before\n{trace}\nINFO behind it (as usual)\n{trace}\n"
    put(tmp_path / "a.log", data=text.encode(encoding))
    arriving(tmp_path, log, multiline=language, encoding=encoding).run()
    assert log.values == ["before", trace, "INFO behind it (as usual)", trace] or language == "go"
    # A panic begins no record of its own name only where the line before it ends one.
    assert "\n".join(log.values) == text.rstrip("\n")


def test_a_record_waits_for_more_lines_until_its_time_is_over(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "b one", "more", "b two")
    reader = follow(tmp_path, log, multiline=Multiline(start="^b", timeout="5s"))
    reader.run(3)
    assert log.values == ["b one\nmore"]
    write(tmp_path / "a.log", "more of two")
    # The receiver is killed: the lines that wait are read again.
    reader = follow(tmp_path, log, multiline=Multiline(start="^b", timeout="5s"))
    reader.run(3)
    assert log.values == ["b one\nmore"]
    reader.run(4)
    assert log.values == ["b one\nmore", "b two\nmore of two"]
    write(tmp_path / "a.log", "late")
    reader.run(7)
    assert log.values == ["b one\nmore", "b two\nmore of two", "late"]
    reader.close()


def test_lines_that_keep_coming_do_not_make_a_record_wait_longer(tmp_path: Path) -> None:
    log = Log()
    reader = follow(tmp_path, log, multiline=Multiline(continuation=r"^\s", timeout="5s"))
    for number in range(20):
        write(tmp_path / "a.log", f" {number}")
        reader.run(1)
    assert 3 <= len(log.values) <= 4
    assert "\n".join(log.values).splitlines() == [f" {number}" for number in range(len("".join(log.values).split()))]
    reader.close()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "give either `start` or `continuation`"),
        ({"start": "a", "continuation": "b"}, "give either `start` or `continuation`"),
        ({"start": "(?<!a)b"}, "'(?<!' is not in RE2's syntax"),
        ({"start": r"(a)\1"}, "is not in RE2's syntax"),
        ({"continuation": "(a"}, "'(a' is no regular expression"),
        ({"start": "(?#c)x"}, "'(?#' is not in RE2's syntax"),
        ({"start": "(?x) a"}, "'(?x' is not in RE2's syntax"),
        ({"start": r"(?a)\d"}, "'(?a' is not in RE2's syntax"),
        ({"start": r"[\b]"}, "is not in RE2's syntax"),
        ({"start": "\\é"}, "is not in RE2's syntax"),
        ({"start": ""}, "an empty pattern matches each line"),
        ({"start": "a", "timeout": 0}, "greater than 0"),
    ],
)
def test_a_pattern_that_can_not_work_is_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(says)):
        Multiline.model_validate(fields)


def test_a_language_is_kept_as_its_pattern(tmp_path: Path) -> None:
    source = FollowedFiles(path=f"{tmp_path}/*.log", multiline="java")
    assert FollowedFiles.model_validate_json(source.model_dump_json()) == source
    with pytest.raises(ValidationError, match="'cobol' is not known: use 'java', 'python', 'go', or Multiline"):
        FileLines(path=str(tmp_path), multiline="cobol")


@pytest.mark.parametrize("kind", [FollowedFiles, FileLines])
def test_a_pattern_that_only_re2_can_refuse_fails_the_receiver_at_once(
    tmp_path: Path, kind: type[FollowedFiles | FileLines]
) -> None:
    source = kind(path=f"{tmp_path}/a", multiline=Multiline(start="(.{900}){900}"))
    with pytest.raises(SourceError, match=r"multiline: .* is no regular expression of RE2"):
        make_receiver(source)


@pytest.mark.parametrize("completes", [True, False])
def test_half_a_unit_at_the_end_is_put_aside_behind_the_records(*, completes: bool) -> None:
    data = "b\n a\nc".encode("utf-16-le") + b"Q"
    reader = LineReader(encoding="utf-16-le", max_record_bytes=MOST, multiline=CONTINUATION)
    reading = Reading("a")
    records: list[str] = []
    letters: list[bytes] = []
    for _ in range(4):
        content, limits = OpenedFile(pa.BufferReader(data)), Limits(1000, 1000)
        part = reader.read(
            reading, content, limits, path="a", modified_ms=1, ends=not completes, completes=completes, closes=completes
        )
        letters += [letter.data for letter in part.letters]
        records += [] if part.batch is None else part.batch.column("value").to_pylist()
    assert (records, letters) == (["b\n a"], ["c".encode("utf-16-le") + b"Q"])


def test_nulls_at_the_end_that_may_be_written_yet_cut_no_record(tmp_path: Path) -> None:
    log = Log()
    path = tmp_path / "a.log"
    path.write_bytes(b"b one\nmore\n" + bytes(5000))
    reader = follow(tmp_path, log, multiline=Multiline(start="^b", timeout="5s"))
    reader.run(3)
    with path.open("r+b") as file:
        file.seek(11)
        file.write(b"and more\nb two\n")
    reader.run(2)
    assert log.values == ["b one\nmore\nand more"]
    reader.run(7)
    assert log.values == ["b one\nmore\nand more", "b two"]
    reader.close()


def test_a_record_that_begins_where_one_is_overdue_stays_open(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "b one")
    reader = follow(tmp_path, log, multiline=Multiline(start="^b", timeout="5s"))
    reader.run(5)
    write(tmp_path / "a.log", "b two")
    reader.run(2)
    assert log.values == ["b one"]
    write(tmp_path / "a.log", "more of two")
    reader.run(7)
    assert log.values == ["b one", "b two\nmore of two"]
    reader.close()
