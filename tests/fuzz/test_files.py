"""Fuzz the contents of files, plain and compressed, and the names under which their positions are kept."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.receivers.files.content import DecompressedFile, OpenedFile
from receiver_runtime.receivers.files.file_kinds import Codec
from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
from receiver_runtime.receivers.files.records import Limits, LineReader, Reading
from tests.fuzz.target import fuzzed
from tracker_store.blocks.blocks import Position

if TYPE_CHECKING:
    from receiver_runtime.receivers.files.content import Content

_LINES = b"one\ntwo\r\n\ncaf\xc3\xa9\n" + b"x" * 60 + b"\nlast"
_MOST_BYTES = 40


def zipped(data: bytes) -> bytes:
    """Return an archive of one file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("a"), data)
    return file.getvalue()


def _lines(content: Content, limits: Limits, most_steps: int) -> tuple[list[object], list[object], list[bytes], int]:
    reader = LineReader(encoding="utf-8", max_record_bytes=_MOST_BYTES)
    reading = Reading("a")
    values: list[object] = []
    places: list[object] = []
    letters: list[bytes] = []
    for _ in range(most_steps):
        before = reading.position
        part = reader.read(reading, content, limits, path="a/\udcff", modified_ms=1, ends=True)
        letters += [letter.data for letter in part.letters]
        if part.batch is not None:
            part.batch.validate(full=True)
            values += part.batch.column("value").to_pylist()
            places += part.batch.column("offset").to_pylist()
        if not part.more and reading.position == before:
            return values, places, letters, reading.position
    raise AssertionError(f"it was not read within {most_steps} steps")


@fuzzed("file_lines", valid=[_LINES, _LINES * 5], words=[b"\r", b"x" * 41, b"\n"], attacks=[b"\n" * 2000, b"x" * 9000])
def test_a_file_gives_the_same_lines_in_pieces_of_any_size(data: bytes) -> None:
    expected = None
    for limits in (Limits(2**20, 2**20), Limits(3, 1), Limits(64, 2)):
        found = _lines(OpenedFile(pa.BufferReader(data)), limits, 2 * len(data) + 10)
        expected = expected or found
        assert found == expected
        assert found[3] == len(data)


@fuzzed(
    "file_compressed",
    valid=[
        b"g" + gzip.compress(_LINES * 9, mtime=0),
        b"b" + bz2.compress(_LINES * 9),
        b"x" + lzma.compress(_LINES * 9),
        b"p" + zipped(_LINES * 9),
    ],
    attacks=[
        b"g" + gzip.compress(bytes(2**20)),
        # More than is read at once, and then its end is damaged.
        b"b" + bz2.compress(bytes(2**23), 9)[:-1] + b"x",
    ],
)
def test_a_compressed_file_gives_the_same_bytes_from_any_offset(data: bytes) -> None:
    codec = {b"g": Codec.GZIP, b"b": Codec.BZIP2, b"x": Codec.XZ, b"p": Codec.ZIP}.get(data[:1], Codec.ZSTD)

    def opened() -> DecompressedFile:
        return DecompressedFile(lambda: pa.BufferReader(data[1:]), codec)

    most = 2**22
    file = opened()
    try:
        whole = file.read(0, most + 1)
    except OSError:
        return
    places = [(0, 10), (10, 10), (5, 100), (min(len(whole), most) // 2, 7)]
    # Where there is more than was read, its end may be damaged.
    if len(whole) <= most:
        places += [(len(whole), 5), (len(whole) + 9, 5)]
    for offset, size in places:
        assert file.read(offset, size) == whole[offset : offset + size]
        assert opened().read(offset, size) == whole[offset : offset + size]
    file.close()


@fuzzed(
    "file_positions",
    valid=[b"logs/1f/12-00ff\nlogs/=+1:12-00ff\nlogs/1f/12-00ff+0:9-aa\nlogs/==+1:12-aa\nlogs/1f/12-00ff~2"],
    words=[b"~", b"+", b":", b"-", b"=", b"logs/", "\u0663".encode()],
    attacks=[b"logs/1f/" + b"9" * 5000 + b"-00"],
)
def test_any_names_of_positions_are_learned_or_passed_over(data: bytes) -> None:
    names = data.decode("utf-8", "replace").split("\n")
    # No text of the driver log has a NUL, and its names are of this length at most.
    positions = {name[:500].replace("\0", ""): Position(0, n) for n, name in enumerate(names)}
    known = KnownContents("files", "logs/", _NoPositions())  # type: ignore[arg-type]
    known.learn(positions)
    for name in positions:
        known.names.fingerprint_in(name)
        known.is_certain(name)


class _NoPositions:
    """Is not asked."""
