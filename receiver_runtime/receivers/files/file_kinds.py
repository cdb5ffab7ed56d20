"""Tell a file's kind by its first bytes, and open what is compressed.

A name says nothing about a content: logrotate compresses `app.log.2.xz` by any program, and copies are renamed. This
module owns the table of kinds: what is read as it is, what is decompressed, and what is refused because its lines would
be nonsense. It must never look at a name, and it reads only from what it is given.
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    import lzma
    from collections.abc import Callable, Sequence

_XZ_MEMORY_BYTES = 2**28  # what a stream may ask for; `xz -9` asks for a quarter
_XZ_READ_BYTES = 2**16

# What the module bz2 raises as an OSError is no fault of the disk or the network.
_BAD_BZIP2 = ("Invalid data stream",)
# A zip archive's last record, and in how many of the last bytes it is, with the comment behind it.
_ZIP_END = b"PK\5\6"
_ZIP_END_SIZE = 22
_ZIP_END_BYTES = _ZIP_END_SIZE + 2**16
_ZIP_MARKER_BYTES = 4  # before the first file of an archive that was made for several volumes

#: How many of a file's first bytes tell its kind.
KIND_BYTES = tarfile.BLOCKSIZE


class UnreadableKindError(OSError):
    """It is of a kind that has no lines: unpack it, or leave it out (exclude, pattern)."""

    def __init__(self, what: str, way_out: str = "unpack it there, or leave it out (exclude, pattern)") -> None:
        """Take what the file is, as "a tar archive", and what to do with it."""
        super().__init__(f"it is {what}, and is not read: {way_out}")
        self.what = what


class DamagedError(OSError):
    """Its bytes can't be decompressed, or are no archive's: reading it again gives the same."""


class Codec(StrEnum):
    """Name the compression of a content."""

    GZIP = "gzip"
    BZIP2 = "bz2"
    ZSTD = "zstd"
    LZ4 = "lz4"
    XZ = "xz"
    ZIP = "zip"


# Formats whose first bytes are text have more of their header here, so that no line is taken for one of them.
_CODECS: tuple[tuple[re.Pattern[bytes], Codec], ...] = (
    (re.compile(rb"\x1f\x8b\x08"), Codec.GZIP),
    # The digit is the block size; behind it comes a block, or at once the end.
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)"), Codec.BZIP2),
    # pzstd begins with a frame that is passed over.
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL), Codec.ZSTD),
    (re.compile(rb"\x04\x22\x4d\x18"), Codec.LZ4),
    (re.compile(rb"\xfd7zXZ\x00"), Codec.XZ),
    # The second two are of an archive in several volumes, or meant to be.
    (re.compile(rb"PK(?:\x03\x04|\x05\x06|(?:\x07\x08|00)PK\x03\x04)"), Codec.ZIP),
)
_TAR = re.compile(rb".{257}ustar", re.DOTALL)
# A tar header of any age has the sum of its bytes.
_TAR_SUM = re.compile(rb"[^\0].{147}[ 0-7]{6,7}[ \0]", re.DOTALL)
_REFUSED: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"7z\xbc\xaf\x27\x1c"), "a 7-Zip archive"),
    (re.compile(rb"Rar!\x1a\x07"), "a RAR archive"),
    (re.compile(rb"\x1f[\x9d\xa0]"), "compressed by compress (.Z)"),
    (re.compile(rb"\x1f\x1e"), "compressed by pack (.z)"),
    (re.compile(rb"LZIP[\x00\x01]"), "compressed by lzip"),
    (re.compile(rb"\x89LZO\x00"), "compressed by lzop"),
    (re.compile(rb"\x5d\x00\x00.{2}(?:\x00{3}|\xff{3})", re.DOTALL), "compressed by lzma, without xz's container"),
    (re.compile(rb"\xff\x06\x00\x00sNaPpY"), "compressed by snappy"),
    (re.compile(rb"\x02\x21\x4c\x18"), "compressed by an old lz4"),
    (re.compile(rb"07070[12][0-9A-Fa-f]{104}|070707[0-7]{70}"), "a cpio archive"),
    (re.compile(rb"!<(?:arch|thin)>\n"), "an ar archive, or a package of Debian"),
    (re.compile(rb"\xed\xab\xee\xdb"), "a package of RPM"),
    (re.compile(rb"MSCF\0{4}"), "a cabinet archive"),
    (re.compile(rb"%PDF-\d\.\d\s"), "a PDF document"),
    (re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff"), "an image"),
    (re.compile(rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), "a document of an old Office"),
    (re.compile(rb"\xca\xfe\xba\xbe|[\xce\xcf]\xfa\xed\xfe|\0asm"), "a program"),
    (re.compile(rb"\x89HDF\r\n\x1a\n"), "an HDF5 file"),
    (
        re.compile(
            rb"[\xd4\x4d][\xc3\x3c]\xb2\xa1|\xa1\xb2[\x3c\xc3][\x4d\xd4]|\x0a\x0d\x0d\x0a.{4}[\x1a\x4d]", re.DOTALL
        ),
        "captured packets (use tcpdump -r)",
    ),
    (re.compile(rb"PAR1\x15"), "a Parquet file"),
    (re.compile(rb"Obj\x01"), "an Avro file"),
    (re.compile(rb"SQLite format 3\x00"), "an SQLite database"),
    (re.compile(rb"ARROW1\x00\x00"), "an Arrow file"),
    (re.compile(rb"\x7fELF"), "a program"),
    (re.compile(rb"LPKSHHRH"), "a journal of systemd (use journalctl -o json)"),
    (re.compile(rb"ElfFile\x00"), "a Windows event log"),
)


def codec_of(head: bytes) -> Codec | None:
    """Return how a content is compressed; None: it is read as it is.

    Args:
        head: its first ``KIND_BYTES`` bytes, or all of them where it has fewer.

    Raises:
        UnreadableKindError: it has no lines, and would be read as nonsense.
    """
    for pattern, codec in _CODECS:
        if pattern.match(head):
            return codec
    for pattern, what in _REFUSED:
        if pattern.match(head):
            raise UnreadableKindError(what)
    if is_tar(head):
        raise UnreadableKindError("a tar archive")
    return None


def is_tar(head: bytes) -> bool:
    """Return whether a content is a tar archive, by its first ``KIND_BYTES`` bytes."""
    if _TAR.match(head):
        return True
    if not _TAR_SUM.match(head):
        return False
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "latin-1", "replace")
    except tarfile.HeaderError:
        return False
    return True


def check_decompressed(head: bytes, codec: Codec) -> None:
    """Raise UnreadableKindError if what a codec gives is of a kind without lines too, such as a tar archive in gzip."""
    try:
        inner = codec_of(head)
    except UnreadableKindError as error:
        raise UnreadableKindError(f"{error.what}, compressed by {codec.value}") from None
    if inner is not None:
        raise UnreadableKindError(f"compressed twice, by {inner.value} and by {codec.value}")


def unread_files(refused: Sequence[tuple[str, OSError]]) -> str | None:
    """Return what operators are told of files that are not read, each with the reason; None: there are none."""
    if not refused:
        return None
    path, why = refused[0]
    more = f", and {len(refused) - 1:,} more file(s)" if len(refused) > 1 else ""
    return f"{path} is not read{more}: {why}"


class Decompressed(Protocol):
    """Decompress a content's bytes, from its beginning to its end. Every method raises OSError."""

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most ``size``; none only at the end."""
        ...

    def close(self) -> None:
        """Close it, and the file below it."""
        ...


def open_decompressed(raw: Any, codec: Codec) -> Decompressed:  # noqa: ANN401  pyarrow has no types
    """Open the decompressed bytes of one of pyarrow's files, which must be one that can seek. Raises OSError."""
    try:
        if codec is Codec.XZ:
            return _Xz(raw)
        if codec is Codec.ZIP:
            return _Zip(raw)
        return _Streamed(pa.CompressedInputStream(raw, codec.value))
    except BaseException:
        raw.close()
        raise


class _Streamed:
    def __init__(self, stream: Any) -> None:  # noqa: ANN401  pyarrow has no types
        self._stream = stream

    def read(self, size: int) -> bytes:
        # Not the stream's `read`: where it fails, pyarrow never frees the bytes that it had made room for.
        try:
            data: bytes = self._stream.read_buffer(size).to_pybytes()
        except pa.ArrowException as error:
            raise damaged(error) from error
        return data

    def close(self) -> None:
        self._stream.close()


class _Xz:
    """Python's own reader of xz passes over whatever follows the last stream, without a word: this one does not."""

    def __init__(self, raw: Any) -> None:  # noqa: ANN401  as above
        try:
            import lzma  # noqa: PLC0415  a Python may be built without it
        except ImportError as error:
            raise OSError(f"it is compressed by xz, and this Python is built without lzma ({error})") from error
        self._lzma = lzma
        self._raw = raw
        self._stream = self._new()

    def _new(self) -> lzma.LZMADecompressor:
        return self._lzma.LZMADecompressor(self._lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)

    def read(self, size: int) -> bytes:
        while True:
            data = b""
            if self._stream.eof:
                # Zeros may stand between streams, and at the end.
                data = self._stream.unused_data.lstrip(b"\0")
                while not data:
                    if not (data := self._raw.read(_XZ_READ_BYTES)):
                        return b""
                    data = data.lstrip(b"\0")
                self._stream = self._new()
            elif self._stream.needs_input and not (data := self._raw.read(_XZ_READ_BYTES)):
                raise damaged("it is cut short")
            try:
                found = self._stream.decompress(data, size)
            except self._lzma.LZMAError as error:
                raise damaged(error) from error
            if found:
                return found

    def close(self) -> None:
        self._raw.close()


class _Zip:
    """Read the only file in an archive."""

    def __init__(self, raw: Any) -> None:  # noqa: ANN401  as above
        self._raw = raw
        self._archive, members = zipped_files(raw)
        if len(members) != 1:
            raise UnreadableKindError(f"a zip archive of {len(members)} files")
        self._member = explained(lambda: self._archive.open(members[0]))

    def read(self, size: int) -> bytes:
        data: bytes = explained(lambda: self._member.read(size))
        if size and not data:
            check_bounds(self._archive)
        return data

    def close(self) -> None:
        self._member.close()
        self._raw.close()


def zipped_files(raw: Any) -> tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]:  # noqa: ANN401  pyarrow has no types
    """Open a zip archive, and return it with its files. Raises OSError."""
    archive: zipfile.ZipFile = explained(lambda: zipfile.ZipFile(raw))
    return archive, [one for one in archive.infolist() if not one.filename.endswith("/")]


def check_bounds(archive: zipfile.ZipFile) -> None:
    """Check that a zip archive begins and ends with its file, as zipfile does not. Raises OSError."""
    if min((one.header_offset for one in archive.infolist()), default=0) > _ZIP_MARKER_BYTES:
        raise damaged("it begins with something that is not in its directory, as another archive")
    file: Any = archive.fp
    file.seek(0, io.SEEK_END)
    size = file.tell()
    file.seek(max(0, size - _ZIP_END_BYTES))
    tail = file.read(_ZIP_END_BYTES)
    end = tail.rfind(_ZIP_END) + _ZIP_END_SIZE
    if tail[end + int.from_bytes(tail[end - 2 : end], "little") :].strip(b"\0"):
        raise damaged("something stands behind its end")


def explained(read: Callable[[], Any]) -> Any:  # noqa: ANN401  the readers of zipfile and tarfile
    """Return what zipfile or tarfile reads. Raises OSError where the bytes are not what they begin as."""
    try:
        return read()
    except (OSError, MemoryError) as error:
        if error.args == _BAD_BZIP2:
            raise damaged(error) from error
        raise
    except Exception as error:  # whatever a decoder raises: of what is cut short, encrypted, or damaged
        raise damaged(error) from error


def damaged(why: object) -> DamagedError:
    """Return the error for bytes that are not what they begin as."""
    return DamagedError(f"it can't be decompressed: {why}")


def first_bytes(stream: Decompressed, size: int) -> bytes:
    """Return a stream's first bytes, fewer only where it ends. Raises OSError."""
    data = b""
    while len(data) < size and (more := stream.read(size - len(data))):
        data += more
    return data
