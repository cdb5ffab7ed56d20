"""Compare the bytes of files.

This module owns the questions that only a read of a file answers: what it begins with, and whether it still has, or
also has, known bytes. It opens a file for one question and closes it again. It must never change a file's state, ask
the driver log, or decide what an answer means.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from receiver_runtime.receivers.files.content import DecompressedFile, LocalFile, open_compressed
from receiver_runtime.receivers.files.file_kinds import codec_of
from receiver_runtime.receivers.files.followed.contents.fingerprints import FINGERPRINT_BYTES, digest

if TYPE_CHECKING:
    from receiver_runtime.receivers.files.file_kinds import Codec
    from receiver_runtime.receivers.files.followed.contents.fingerprints import Fingerprint
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile

_OVERLAP_BYTES = 65_536  # bytes compared at the end of what two files share: enough lines to tell logs apart


def open_content(file: FollowedFile) -> LocalFile | DecompressedFile:
    """Open a file's content, decompressed where it is compressed. Raises OSError."""
    return open_plain(file) if file.codec is None else _open_decompressed(file, file.codec)


def _open_decompressed(file: FollowedFile, codec: Codec) -> DecompressedFile:
    path, tree = file.path, file.tree
    return DecompressedFile(lambda: open_compressed(path, tree), codec)


def open_plain(file: FollowedFile) -> LocalFile:
    """Open a file's bytes as they are. Raises OSError."""
    return LocalFile(file.path, file.tree)


class Head(NamedTuple):
    """Hold a content's first bytes, decompressed, and how they were compressed.

    ``checksum``: of a compressed file, its size with the digest of its two ends. Its last bytes hold a checksum of the
    whole file, so this tells it apart.
    """

    data: bytes
    codec: Codec | None = None
    checksum: Fingerprint | None = None


def read_head(file: FollowedFile) -> Head:
    """Return a content's beginning. Raises OSError, and UnreadableKindError for a kind that is not read."""
    with closing(open_plain(file)) as content:
        raw = content.read(0, FINGERPRINT_BYTES)
        codec = codec_of(raw)
        if codec is None:
            return Head(raw)
        size = content.stat.st_size
        end = content.read(max(0, size - FINGERPRINT_BYTES), FINGERPRINT_BYTES)
    with closing(_open_decompressed(file, codec)) as unpacked:
        return Head(unpacked.read(0, FINGERPRINT_BYTES), codec, (size, digest(raw + end)))


def find_last_line_end(file: FollowedFile) -> int:
    """Return the offset behind the last whole line; 0 where there is none. Raises OSError."""
    with closing(open_plain(file)) as content:
        end = content.stat.st_size
        while end > 0:
            begin = max(0, end - _OVERLAP_BYTES)
            found = content.read(begin, end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
        return 0


def has_head(file: FollowedFile, head: bytes) -> bool:
    """Return whether a file begins with these bytes; True where it can't be read, so that the caller waits."""
    try:
        with closing(open_plain(file)) as content:
            return content.read(0, len(head)) == head
    except OSError:
        return True


def is_unchanged(file: FollowedFile, content: LocalFile, position: int) -> bool:
    """Return whether an open file has the content that ``file`` describes, as far as it was read.

    It compares the beginning, and the last bytes before ``position``. Raises OSError.
    """
    length, expected = file.second or file.fingerprint
    before = max(0, position - len(file.tail))
    return (
        content.stat.st_size >= position
        and digest(content.read(0, length)) == expected
        and (not file.tail or content.read(before, position - before) == file.tail)
    )


def has_tail(file: FollowedFile, tail: bytes, position: int) -> bool:
    """Return whether a file has these bytes before ``position``. Raises OSError."""
    with closing(open_content(file)) as content:
        return content.read(position - len(tail), len(tail)) == tail


def reaches(file: FollowedFile, offset: int, mark: Fingerprint | None, *, is_whole: bool = True) -> bool:
    """Return whether a file has this mark and at least ``offset`` bytes. Raises OSError.

    ``is_whole``: a file that ends before the mark does not have it.
    """
    length, expected = mark or (0, "")
    if mark is None and (file.codec is None or offset <= FINGERPRINT_BYTES):
        return True
    with closing(open_content(file)) as content:
        found = b"" if mark is None else content.read(length - FINGERPRINT_BYTES, FINGERPRINT_BYTES)
        if mark is not None and len(found) < FINGERPRINT_BYTES:
            return not is_whole
        return (mark is None or digest(found) == expected) and (
            file.codec is None or offset <= length or bool(content.read(offset - 1, 1))
        )


def ends_alike(deleted: LocalFile, file: FollowedFile) -> bool:
    """Return whether a deleted, open file and another have the same bytes where the shorter ends. Raises OSError."""
    with closing(open_plain(file)) as content:
        return _has_same_overlap(deleted, content)


def have_same_overlap(one: FollowedFile, other: FollowedFile) -> bool:
    """Return whether two files have the same bytes where the shorter ends; False where one can't be read."""
    try:
        with closing(open_plain(one)) as first, closing(open_plain(other)) as second:
            return _has_same_overlap(first, second)
    except OSError:
        return False


def _has_same_overlap(first: LocalFile, second: LocalFile) -> bool:
    end = min(first.stat.st_size, second.stat.st_size)
    begin = max(0, end - _OVERLAP_BYTES)
    return first.read(begin, end - begin) == second.read(begin, end - begin)
