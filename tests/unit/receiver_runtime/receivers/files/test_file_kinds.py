"""Check that a file's kind is its content, whatever its name, and that no line is taken for an archive."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import tarfile
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from receiver_runtime.receivers.files.content import DecompressedFile
from receiver_runtime.receivers.files.declaration import FileLines, FollowedFiles
from receiver_runtime.receivers.files.file_kinds import KIND_BYTES, Codec, UnreadableKindError, codec_of
from receiver_runtime.receivers.files.plain_text import check_text
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write
from tests.unit.receiver_runtime.receivers.files.test_arriving import arriving, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _zipped(*files: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, one in enumerate(files):
            archive.writestr(f"{number}.log", one)
    return file.getvalue()


def _tarred(data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("a.log")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def _parquet(data: bytes) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"value": [data]}), file)
    return file.getvalue()


def _orc() -> bytes:
    file = io.BytesIO()
    orc.write_table(pa.table({"value": ["one\n", "two\n"]}), file)
    return file.getvalue()


def _of_v7(data: bytes) -> bytes:
    """Return a tar archive as Unix's seventh edition wrote it, without a magic."""
    header = bytearray(_tarred(data))
    header[257:265] = bytes(8)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


LINES = b"".join(b"line %d\n" % number for number in range(5000))
COMPRESS: dict[Codec, Callable[[bytes], bytes]] = {
    Codec.GZIP: gzip.compress,
    Codec.BZIP2: bz2.compress,
    Codec.ZSTD: lambda data: pa.compress(data, "zstd", asbytes=True),
    Codec.LZ4: lambda data: pa.compress(data, "lz4", asbytes=True),
    Codec.XZ: lzma.compress,
    Codec.ZIP: _zipped,
}
REFUSED = {
    "a tar archive": _tarred(b"one\n"),
    "a tar archive, as": _of_v7(b"one\n"),
    "a zip archive of 2 files": _zipped(b"one\n", b"two\n"),
    "a tar archive, compressed by gzip": gzip.compress(_tarred(b"one\n")),
    "a tar archive, compressed by xz": lzma.compress(_tarred(b"one\n")),
    "a Parquet file, compressed by zip": _zipped(b"PAR1\x15 and more"),
    "compressed twice, by gzip and by zstd": pa.compress(gzip.compress(b"one\n"), "zstd", asbytes=True),
    "compressed twice, by zip and by gzip": gzip.compress(_zipped(b"one\n")),
    "a Parquet file": _parquet(b"one\n"),
    "a 7-Zip archive": b"7z\xbc\xaf\x27\x1c\0\4" + bytes(24),
    "a RAR archive": b"Rar!\x1a\x07\x01\0" + bytes(24),
    "compressed by compress": b"\x1f\x9d\x90" + b"x" * 20,
    "compressed by lzma": lzma.compress(b"one\n", format=lzma.FORMAT_ALONE),
    "compressed by lzip": b"LZIP\1\x0c\0\x37\x9a\xcb\xe6\x80\n" + bytes(16),
    "compressed by lzop": b"\x89LZO\0\r\n\x1a\n" + bytes(20),
    "compressed by snappy": b"\xff\6\0\0sNaPpY\1\10\0\0\0\0\0\0one\n",
    "compressed by zlib": zlib.compress(b"one\ntwo\n"),
    "no text in utf-8": b"\x0b\3\x80one\ntwo\n\3",  # brotli
    "no text in utf-8, by": zlib.compress(LINES)[2:],
    "no text in utf-8, by the": b"\xcf\x84\0\1\2" * 400 + b"\n",
    "no text in utf-8, by the control": "one\ntwo\nthree\n".encode("utf-16-le"),
    "compressed by zlib, and is not": gzip.compress(zlib.compress(LINES)),
    "no text in utf-8, by the control characters": gzip.compress(b"\0\1\2\3\xff" * 30_000),
    "a zip archive of 0 files": _zipped(),
    "an image": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(60),
    "an image, compressed by xz": lzma.compress(b"\xff\xd8\xff\xe0\0\x10JFIF\0\1one\n"),
    "a PDF document": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n",
    "a cpio archive": b"070701" + b"0" * 104 + b"a.log\0",
    "a cpio archive, compressed by gzip": gzip.compress(b"070707" + b"0" * 70 + b"a.log\0one\n"),
    "an ar archive, or a package of Debian": b"!<arch>\ndebian-binary   1410122664  0     0     100644  4         `\n",
    "a package of RPM": b"\xed\xab\xee\xdb\3\0\0\0" + bytes(90),
    "an ORC file": _orc(),
    "an Avro file": b"Obj\1\4\x14avro.codec\x08null\0" + bytes(40),
    "an SQLite database": b"SQLite format 3\0\x10\0\1\1\0" + bytes(200),
    "a program": b"\x7fELF\2\1\1" + bytes(60),
    "a program, compressed by zip": _zipped(b"\xca\xfe\xba\xbe\0\0\0A\0\n"),
}
# What a user calls a file says nothing.
NAMES = ("a.log.2.xz", "a.log.1", "a.log", "a.log.gz", "a.log-20260310.bz2")


@pytest.mark.parametrize("codec", COMPRESS)
@pytest.mark.parametrize("name", NAMES[:3])
def test_what_is_compressed_is_read_whatever_its_name(tmp_path: Path, codec: Codec, name: str) -> None:
    data = COMPRESS[codec](b"one\ntwo\n")
    log = Log()
    (tmp_path / name).write_bytes(data)
    follow(tmp_path, log).run()
    assert log.values == ["one", "two"]
    log = Log()
    put(tmp_path / name, data=data)
    arriving(tmp_path, log).run()
    assert log.values == ["one", "two"]


@pytest.mark.parametrize("codec", COMPRESS)
def test_an_archive_of_a_file_that_was_read_is_known_by_content(tmp_path: Path, codec: Codec) -> None:
    log = Log()
    lines = [f"line {number}" for number in range(2000)]
    write(tmp_path / "a.log", *lines)
    reader = follow(tmp_path, log)
    reader.run()
    write(tmp_path / "a.log", "the last one")
    (tmp_path / "a.log.2.any").write_bytes(COMPRESS[codec]((tmp_path / "a.log").read_bytes()))
    (tmp_path / "a.log").unlink()
    reader.run(10)
    follow(tmp_path, log).run(10)
    assert log.values == [*lines, "the last one"]


def test_a_damaged_file_is_shown_while_it_is_there_and_not_while_it_may_be_under_way(tmp_path: Path) -> None:
    log = Log()
    whole = gzip.compress("".join(f"line {number}\n" for number in range(2000)).encode())
    (tmp_path / "a.log.gz").write_bytes(whole + b"tail")
    write(tmp_path / "b.log", "good")
    reader = follow(tmp_path, log)
    reader.run(5)
    assert reader.supervisor.degraded == {}
    reader.run(10)
    [reason] = reader.supervisor.degraded.values()
    assert "a.log.gz is not read: " in reason
    (tmp_path / "a.log.gz").write_bytes(whole)
    reader.run(20)
    assert reader.supervisor.degraded == {}
    assert log.values[-1] == "line 1999"


def test_an_arriving_file_that_is_tried_again_waits_and_is_shown_by_the_receiver_that_reads_it(tmp_path: Path) -> None:
    log = Log()
    whole = gzip.compress(b"good\n" * 2000)
    put(tmp_path / "a.log.gz", data=whole[:-9])
    reader = arriving(tmp_path, log)
    reader.run(30)
    [reason] = reader.supervisor.degraded.values()
    assert "a.log.gz is not read: " in reason
    [unread] = reader.catalog.unread().values()
    assert unread.amount == 1
    reader.catalog.release()
    assert len(reader.supervisor.degraded) == 1
    put(tmp_path / "a.log.gz", data=whole)
    reader.run(40)
    assert reader.supervisor.degraded == {}
    assert log.values == ["good"] * 2000


ARCHIVES = [what for what in REFUSED if "tar archive" in what or "zip archive of" in what]


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("kind", ["followed", "arriving"])
def test_a_kind_without_lines_is_refused_as_a_whole_and_shown_while_it_is_there(
    tmp_path: Path, kind: str, what: str
) -> None:
    log = Log()
    if kind == "arriving" and what in ARCHIVES:
        pytest.skip("FileLines reads the files in an archive: test_archives.py")
    put(tmp_path / "a.log", data=REFUSED[what], days=1)
    put(tmp_path / "b.log", "good", days=2)
    reader = follow(tmp_path, log) if kind == "followed" else arriving(tmp_path, log)
    reader.run(5)
    assert log.values == ["good"]
    assert reader.supervisor.letters == []
    [error] = reader.supervisor.errors
    [reason] = reader.supervisor.degraded.values()
    for text in (error, reason):
        assert "a.log is not read" in text
        assert f"it is {what.removesuffix(', as')}" in text
    (tmp_path / "a.log").unlink()
    reader.run(10)
    assert reader.supervisor.degraded == {}


def test_an_archive_without_a_magic_is_read_file_by_file(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "a.log", data=_of_v7(b"one\ntwo\n"))
    arriving(tmp_path, log).run()
    assert log.values == ["one", "two"]


@pytest.mark.parametrize("marker", [b"PK\x07\x08", b"PK00"])
def test_an_archive_made_for_several_volumes_is_read(tmp_path: Path, marker: bytes) -> None:
    log = Log()
    put(tmp_path / "a.log", data=marker + _zipped(b"one\ntwo\n"))
    arriving(tmp_path, log).run()
    assert log.values == ["one", "two"]


def test_a_followed_file_that_becomes_bytes_by_rotation_is_refused(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one")
    reader = follow(tmp_path, log)
    reader.run()
    with (tmp_path / "a.log").open("r+b") as file:
        file.truncate(0)
        file.write(zlib.compress(LINES))
    reader.run(5)
    write(tmp_path / "b.log", "two")
    reader.run(5)
    assert (log.values, reader.supervisor.letters) == (["one", "two"], [])
    assert "compressed by zlib" in next(iter(reader.supervisor.degraded.values()))
    again = follow(tmp_path, log)
    again.run(5)
    assert log.values == ["one", "two"]


def test_a_followed_file_that_turns_out_to_be_bytes_as_it_grows_is_refused(tmp_path: Path) -> None:
    log = Log()
    reader = follow(tmp_path, log)
    with (tmp_path / "a.log").open("wb", buffering=0) as file:
        file.write(b"begins as a line\n")
        reader.run()
        for _ in range(3):
            file.write(bytes(range(256)) * 2)
            reader.run()
    assert (log.values, reader.supervisor.letters) == (["begins as a line"], [])
    assert len(reader.supervisor.errors) == 1
    assert "no text in utf-8" in next(iter(reader.supervisor.degraded.values()))


def test_text_that_has_become_text_stays_so_whatever_comes_later(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", *["line"] * 1000)
    reader = follow(tmp_path, log)
    reader.run()
    with (tmp_path / "a.log").open("ab") as file:
        file.write(b"\1\2\3\4" * 5000 + b"\nthe last\n")
    reader.run(5)
    assert log.values[-1] == "the last"
    again = follow(tmp_path, log)
    write(tmp_path / "a.log", "more")
    again.run(5)
    assert (log.values[-1], again.supervisor.degraded) == ("more", {})


@pytest.mark.parametrize("kind", ["followed", "arriving"])
def test_lines_of_bytes_are_read_where_they_are_declared(tmp_path: Path, kind: str) -> None:
    log = Log()
    put(tmp_path / "a.log", data=b"\2\3\4\5\xff\n" * 9, days=1)
    fields: dict[str, Any] = {"binary_lines": True, "encoding": "latin-1"}
    reader = follow(tmp_path, log, **fields) if kind == "followed" else arriving(tmp_path, log, **fields)
    reader.run(5)
    assert (log.values, reader.supervisor.degraded) == (["\2\3\4\5\xff"] * 9, {})


ENCODINGS = ["utf-8", "iso8859-1", "cp1252", "cp437", "shift_jis", "gb18030", "ascii", "utf-16", "utf-32"]


@given(st.binary(min_size=1, max_size=64), st.sampled_from(ENCODINGS), st.integers(0, 99))
def test_compressed_data_is_no_text_in_any_encoding(seed: bytes, encoding: str, number: int) -> None:
    data = b"".join(hashlib.sha256(seed + bytes([part, number])).digest() for part in range(40))
    with pytest.raises(UnreadableKindError):
        check_text(data, encoding)


TEXT = st.characters(codec="utf-8", exclude_categories=["Cc", "Cn", "Co", "Cs"]) | st.sampled_from("\t\n\r\f\x1b\1\x1e")


@given(st.text(TEXT, max_size=300), st.sampled_from(ENCODINGS), st.sampled_from(ENCODINGS[:-2]))
def test_text_is_text_also_in_another_encoding(text: str, encoding: str, declared: str) -> None:
    wide = encoding in ("utf-16", "utf-32")
    check_text(text.encode(encoding, "replace"), "utf-8" if wide else encoding)
    if not wide:
        # Its lines become dead letters, where they can't be decoded.
        check_text(text.encode(encoding, "replace"), declared)


@pytest.mark.parametrize(
    "data",
    [
        b"8=FIX.4.4\x019=112\x0135=A\x01" * 20,
        b"\x1b[31mred\x1b[0m\x07\n" * 20,
        b"a\0b\n",
        bytes(2**16),
        b"one\n" + bytes(4000) + b"two\n",
        b"".join(b"\0\0line %d\n" % number for number in range(100)),
        b"a stray \2 in a line of a usual length, as programs write it\n" * 50,
    ],
)
def test_text_with_some_control_characters_is_text(data: bytes) -> None:
    check_text(data, "utf-8")
    assert codec_of(data[:KIND_BYTES]) is None


def test_a_file_whose_kind_was_refused_is_read_when_it_is_another_one(tmp_path: Path) -> None:
    log = Log()
    (tmp_path / "a.log").write_bytes(REFUSED["a tar archive"])
    reader = follow(tmp_path, log)
    reader.run()
    (tmp_path / "a.log").write_text("one\n")
    reader.run()
    assert (log.values, reader.supervisor.degraded) == (["one"], {})


@pytest.mark.parametrize("codec", COMPRESS)
def test_a_damaged_content_is_an_error_and_nothing_is_made_up(codec: Codec) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(20_000))
    whole = COMPRESS[codec](lines)
    for data in (whole[:-9], whole[: len(whole) // 2], whole + b"and more"):
        file = DecompressedFile(lambda data=data: pa.BufferReader(data), codec)  # type: ignore[misc]
        try:
            found = file.read(0, len(lines) + 100)
        except OSError:
            continue
        # zip finds its directory from the end, whatever else is in the file.
        assert codec is Codec.ZIP
        assert found == lines


def test_streams_of_xz_may_follow_one_another_with_zeros_between_them() -> None:
    data = lzma.compress(b"one\n") + bytes(8) + lzma.compress(b"") + lzma.compress(b"two\n") + bytes(4)
    assert DecompressedFile(lambda: pa.BufferReader(data), Codec.XZ).read(0, 100) == b"one\ntwo\n"


@given(st.text(max_size=600), st.sampled_from(["utf-8", "latin-1", "utf-16-le"]))
def test_no_text_is_taken_for_a_kind(text: str, encoding: str) -> None:
    head = text.encode(encoding, "replace")
    # Control characters at the beginning are no text.
    if head[:2].isascii() and head[:2].decode().isprintable():
        try:
            assert codec_of(head) is None
        except UnreadableKindError:
            assert head[257:262] == b"ustar"


@pytest.mark.parametrize(
    "line", ["BZh9 is a bzip2 header", "Rar! it is", "PAR1S begins", "PK is a name", "7z is a program", "Obj 1"]
)
def test_a_line_that_begins_like_a_kind_is_a_line(line: str) -> None:
    assert codec_of(line.encode()) is None


@pytest.mark.parametrize(
    "name", ["a.log.filepart", "a.log.part", "a.log~", "a.log.swp", "a.log.crdownload", "a.tmp", "A.PART", "a.Swp"]
)
def test_a_file_under_way_is_read_once_it_has_its_name(tmp_path: Path, name: str) -> None:
    for kind in ("followed", "arriving"):
        log = Log()
        put(tmp_path / name, "one")
        reader = follow(tmp_path, log, pattern="*") if kind == "followed" else arriving(tmp_path, log)
        reader.run()
        assert log.values == []
        (tmp_path / name).rename(tmp_path / "a.log")
        reader.run()
        assert log.values == ["one"]
        (tmp_path / "a.log").unlink()
    log = Log()
    put(tmp_path / name, "one")
    follow(tmp_path, log, pattern="*", unfinished=()).run()
    assert log.values == ["one"]


def test_a_pattern_of_nothing_but_files_under_way_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unfinished=\(\)"):
        FollowedFiles(path="/var/log/*.tmp")
    with pytest.raises(ValueError, match=r"unfinished=\(\)"):
        FileLines(path="/incoming", pattern="*.part")
    assert FileLines(path="/incoming", pattern="*.part", unfinished=()).pattern == "*.part"
