"""Walk through the files in an archive, one after the other: zip, and tar, compressed or not.

A position in an archive counts the bytes of its files in their order, and one more behind each, so that an empty file
has a place too. Owns what belongs to an archive, and that all of it was walked through: damage between the files is an
error. It never decides what becomes of a file that can't be read.
"""

from __future__ import annotations

import tarfile
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from receiver_runtime.receivers.files.content import StreamedFile
from receiver_runtime.receivers.files.file_kinds import (
    KIND_BYTES,
    Codec,
    UnreadableKindError,
    check_bounds,
    codec_of,
    damaged,
    explained,
    first_bytes,
    is_tar,
    open_decompressed,
    zipped_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from receiver_runtime.receivers.files.file_kinds import Decompressed

    OpenRaw = Callable[[], Any]
    Walk = Callable[[], Iterator[tuple[str, int, Callable[[], Decompressed]]]]

_MOST_HEADER_BYTES = 2**20  # of a tar header that tarfile reads into memory
_LONG_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_DRAIN_BYTES = 2**20
_HeaderError = tarfile.HeaderError


@dataclass(frozen=True, slots=True)
class Member:
    """Name a file in an archive: its first position, its size, and how its bytes are opened, once."""

    name: str
    start: int
    size: int
    open: Callable[[], Decompressed]

    @property
    def end(self) -> int:
        """Return the position of the next file."""
        return self.start + self.size + 1


class Archive:
    """Find the file at a position. `walk` opens the archive, and yields each file's name, size and opener."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._members: Iterator[Member] | None = None
        self._at: Member | None = None
        self._is_opened = False
        self._content: tuple[Member, StreamedFile] | None = None

    def at(self, position: int) -> Member | None:
        """Return the file that has this position; None behind the last one. Raises OSError."""
        if self._members is None or self._at is None or position < self._at.start:
            self._begin()
        while self._at is not None and position >= self._at.end:
            self._go_on()
        return self._at

    def content(self, member: Member) -> StreamedFile:
        """Return the content of the file that was found last; it is closed with that of the next one."""
        if self._content is None or self._content[0].start != member.start:
            self._close_content()
            self._content = member, StreamedFile(lambda: self._open(member), _check_member)
        return self._content[1]

    def close(self) -> None:
        """Close the archive and what was opened of it."""
        self._close_content()
        self._close_members()

    def _close_content(self) -> None:
        content, self._content = self._content, None
        if content is not None:
            content[1].close()

    def _close_members(self) -> None:
        members, self._members, self._at = self._members, None, None
        if members is not None:
            members.close()  # type: ignore[attr-defined]  # a generator

    def _begin(self) -> None:
        self._close_members()
        self._members = self._placed()
        self._go_on()

    def _go_on(self) -> None:
        self._is_opened = False
        try:
            self._at = next(self._members or iter(()), None)
        except OSError:
            # A generator that raised looks like one that came to its end.
            self.close()
            raise

    def _placed(self) -> Iterator[Member]:
        start = 0
        for name, size, opener in self._walk():
            member = Member(name, start, size, opener)
            yield member
            start = member.end

    def _open(self, member: Member) -> Decompressed:
        found = self._at
        if self._is_opened or found is None or found.start != member.start:
            # What was read of a stream can't be read again.
            self._begin()
            found = self.at(member.start)
        if found is None:
            raise damaged("it has fewer files than before")
        self._is_opened = True
        return found.open()


def open_archive(open_raw: OpenRaw, head: bytes) -> Archive | None:
    """Return the archive of several files that a content is, by its first bytes; None: it is none. Raises OSError."""
    if is_tar(head):
        return Archive(lambda: _tar_files(open_raw, None))
    try:
        codec = codec_of(head)
    except UnreadableKindError:
        return None
    if codec is Codec.ZIP:
        with closing(open_raw()) as raw:
            several = len(zipped_files(raw)[1]) > 1
        return Archive(lambda: _zip_files(open_raw)) if several else None
    if codec is None:
        return None
    with closing(open_decompressed(open_raw(), codec)) as stream:
        is_packed = is_tar(first_bytes(stream, KIND_BYTES))
    return Archive(lambda: _tar_files(open_raw, codec)) if is_packed else None


def _check_member(head: bytes) -> None:
    codec = codec_of(head)
    if codec is not None:
        raise UnreadableKindError(f"compressed by {codec.value} within the archive")


def _zip_files(open_raw: OpenRaw) -> Iterator[tuple[str, int, Callable[[], Decompressed]]]:
    with closing(open_raw()) as raw:
        archive, files = zipped_files(raw)
        for info in files:
            yield info.filename, info.file_size, lambda info=info: _Unpacked(lambda: archive.open(info))  # type: ignore[misc]
        check_bounds(archive)


def _tar_files(open_raw: OpenRaw, codec: Codec | None) -> Iterator[tuple[str, int, Callable[[], Decompressed]]]:
    raw = open_raw()
    with closing(raw if codec is None else open_decompressed(raw, codec)) as stream:
        open_tar: Any = tarfile.open
        archive = explained(lambda: open_tar(fileobj=stream, mode="r|", tarinfo=_Header))
        while (info := explained(archive.next)) is not None:
            # tarfile keeps what it has found.
            archive.members = []
            if info.isreg():
                yield info.name, info.size, lambda info=info: _Unpacked(lambda: archive.extractfile(info))  # type: ignore[misc]
        while behind := explained(lambda: archive.fileobj.read(_DRAIN_BYTES)):
            if behind.strip(b"\0"):
                raise damaged("something stands behind its end")


class _Header(tarfile.TarInfo):
    """tarfile takes a damaged header for the end of an archive, and reads headers of any size: this one does not."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type in _LONG_HEADERS and found.size > _MOST_HEADER_BYTES:
            raise damaged(f"a header in it has {found.size} bytes")
        return found

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except _HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":
                raise
            raise damaged(error) from error


class _Unpacked:
    """Read a file that zipfile or tarfile opens."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._file = explained(opened)

    def read(self, size: int) -> bytes:
        data: bytes = explained(lambda: self._file.read(size))
        return data

    def close(self) -> None:
        self._file.close()
