"""Check that a file's kind is its content, whatever its name, and that no line is taken for an archive."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.receivers.files.content import DecompressedFile
from receiver_runtime.receivers.files.declaration import FileLines, FollowedFiles
from receiver_runtime.receivers.files.file_kinds import Codec, UnreadableKindError, codec_of
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write
from tests.unit.receiver_runtime.receivers.files.test_arriving import arriving, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _zipped(data: bytes, *more: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, one in enumerate((data, *more)):
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
        assert f"it is {what}" in text
    (tmp_path / "a.log").unlink()
    reader.run(10)
    assert reader.supervisor.degraded == {}


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


@pytest.mark.parametrize("name", ["a.log.filepart", "a.log.part", "a.log~", "a.log.swp", "a.log.crdownload", "a.tmp"])
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
