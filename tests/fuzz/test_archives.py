"""Fuzz archives of files: whatever the bytes, only OSError, and what is named has the size that it says."""

from __future__ import annotations

import gzip

import pyarrow as pa

from receiver_runtime.receivers.files.archives import open_archive
from receiver_runtime.receivers.files.file_kinds import KIND_BYTES
from tests.fuzz.target import fuzzed
from tests.unit.receiver_runtime.receivers.files.test_archives import FILES, tarred, zipped

_TAR = tarred(FILES)
_ZIP = zipped(FILES)
_MOST_BYTES = 2**22
_MOST_FILES = 1_000


def _walk(data: bytes) -> None:
    archive = open_archive(lambda: pa.BufferReader(data), data[:KIND_BYTES])
    if archive is None:
        return
    position = 0
    for _ in range(_MOST_FILES):
        member = archive.at(position)
        if member is None:
            break
        assert (member.start, member.end) == (position, position + 1 + member.size)
        try:
            found = archive.content(member).read(0, _MOST_BYTES)
        except OSError:
            found = b""
        assert len(found) <= max(member.size, 0) or len(found) == _MOST_BYTES
        position = member.end
    archive.close()


def _check(data: bytes) -> None:
    try:
        _walk(data)
    except OSError:
        return


@fuzzed(
    "tar_archive",
    valid=[_TAR, _TAR[:1536] + bytes(1024)],
    words=[b"ustar\x0000", b"ustar  \0", b"x", b"g", b"L", b"K", b"S", b"\0" * 8, b"7777777 "],
    attacks=[_TAR * 50],
)
def test_a_tar_archive_is_walked_through_or_refused(data: bytes) -> None:
    _check(data)


@fuzzed("tar_gz_archive", valid=[gzip.compress(_TAR, mtime=0)], attacks=[gzip.compress(_TAR + bytes(2**24), mtime=0)])
def test_a_compressed_tar_archive_is_walked_through_or_refused(data: bytes) -> None:
    _check(data)


@fuzzed(
    "zip_archive",
    valid=[_ZIP],
    words=[b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"\xff\xff\xff\xff", b"\x0c\0", b"\x0e\0"],
    attacks=[zipped([(str(n), b"") for n in range(3_000)])],
)
def test_a_zip_archive_is_walked_through_or_refused(data: bytes) -> None:
    _check(data)
