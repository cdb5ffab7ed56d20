r"""Read lines of containers' logs in bulk: ``TIME stdout F text`` of CRI, and Docker's JSON objects.

Owns what a line is: its stream, its time, its text as bytes, and whether the text goes on in the stream's next line. It
must never join lines or decode texts: a runtime cuts long lines anywhere, also within a character.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver_runtime.receivers.lines import LineFraming

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from receiver_runtime.block_store.frames.frame import DeadLetterReason
    from receiver_runtime.receivers.lines import Positions

    Mask = npt.NDArray[np.bool_]
    Times = npt.NDArray[np.int64]

STREAMS = ("stdout", "stderr")
_NANOSECONDS = pa.timestamp("ns", tz="UTC")
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
# Tags behind P or F mean nothing yet (CRI leaves them to later versions).
_CRI = rf"^(?P<time>{_TIME}) (?P<stream>stdout|stderr) (?P<tag>[PF])(?::[^ ]*)?(?: (?P<text>(?s:.*)))?$"


class BytesFraming(LineFraming):
    """Cut a file into lines of any bytes."""

    def _bad_lines(self, data: bytes, ends: Positions) -> dict[int, DeadLetterReason]:
        del data
        # Without bytes nothing is decoded.
        return super()._bad_lines(b"", ends)

    def _array(self, lines: bytes, ends: Positions) -> pa.Array:
        text = lines.replace(self._delimiter, b"")
        offsets = np.zeros(ends.size + 1, dtype=np.int32)
        offsets[1:] = ends - np.arange(ends.size) * self._size
        return pa.BinaryArray.from_buffers(pa.binary(), ends.size, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


class _DockerLine(msgspec.Struct):
    """Hold a line of Docker's json-file driver. Labels (`attrs`) are left out."""

    log: str
    stream: str
    time: str


_DOCKER = msgspec.json.Decoder(_DockerLine)


@dataclass(frozen=True, slots=True)
class ContainerLines:
    """Hold lines, an entry for each; those of bad lines mean nothing.

    Args:
        bad: what is no line of a container's log.
        streams: the index in ``STREAMS``.
        goes_on: the text goes on in the next line of its stream.
        times: nanoseconds since 1970.
        texts: binary, without line ends.
    """

    bad: Mask
    streams: npt.NDArray[np.int8]
    goes_on: Mask
    times: Times
    texts: pa.BinaryArray


def read_lines(lines: pa.BinaryArray) -> ContainerLines:
    """Read lines of either format, as binary."""
    is_docker = pc.starts_with(lines, b"{").to_numpy(zero_copy_only=False)
    if not is_docker.any():
        return _read_cri(lines)
    if is_docker.all():
        return _read_docker(lines)
    cri, docker = np.flatnonzero(~is_docker), np.flatnonzero(is_docker)
    parts = (_read_cri(lines.take(pa.array(cri))), _read_docker(lines.take(pa.array(docker))))
    back = np.argsort(np.concatenate([cri, docker]))
    return ContainerLines(
        np.concatenate([part.bad for part in parts])[back],
        np.concatenate([part.streams for part in parts])[back],
        np.concatenate([part.goes_on for part in parts])[back],
        np.concatenate([part.times for part in parts])[back],
        pa.concat_arrays([part.texts for part in parts]).take(pa.array(back)),
    )


def _read_cri(lines: pa.BinaryArray) -> ContainerLines:
    found = pc.extract_regex(lines, _CRI)
    bad: Mask = pc.is_null(found).to_numpy(zero_copy_only=False).copy()
    # A flattened field is null where the whole line is.
    times, streams, tags, texts = (pc.fill_null(field, b"") for field in found.flatten())
    nanoseconds = _nanoseconds(times.cast(pa.string()), bad)
    return ContainerLines(
        bad,
        pc.equal(streams, b"stderr").to_numpy(zero_copy_only=False).astype(np.int8),
        pc.equal(tags, b"P").to_numpy(zero_copy_only=False).copy(),
        nanoseconds,
        texts,
    )


def _read_docker(lines: pa.BinaryArray) -> ContainerLines:
    # Objects of Python: no vector code unescapes JSON's strings, and Arrow's parser of JSON is slower, and crashes.
    found = _decode(lines.to_pylist())
    bad = np.array([line is None or line.stream not in STREAMS for line in found], dtype=bool)
    logs = ["" if line is None else line.log for line in found]
    times = pa.array(["" if line is None else line.time for line in found], pa.string())
    bad |= pc.invert(pc.match_substring_regex(times, f"^{_TIME}$")).to_numpy(zero_copy_only=False)
    texts = [log.removesuffix("\n").removesuffix("\r") if log.endswith("\n") else log for log in logs]
    return ContainerLines(
        bad,
        np.array([line is not None and line.stream == "stderr" for line in found], dtype=np.int8),
        np.array([not log.endswith("\n") for log in logs], dtype=bool),
        _nanoseconds(times, bad),
        pa.array(texts, pa.string()).cast(pa.binary()),
    )


def _decode(lines: Sequence[bytes]) -> Sequence[_DockerLine | None]:
    found: list[_DockerLine | None] = []
    for line in lines:
        try:
            found.append(_DOCKER.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found.append(None)
    return found


def _nanoseconds(texts: pa.StringArray, bad: Mask) -> Times:
    """Return times in nanoseconds since 1970, and add those that are none to ``bad``."""
    times = np.zeros(len(texts), dtype=np.int64)
    spans = [(0, len(texts))]
    known = pc.if_else(pa.array(bad), "1970-01-01T00:00:00Z", texts)
    while spans:
        begin, end = spans.pop()
        try:
            times[begin:end] = known.slice(begin, end - begin).cast(_NANOSECONDS).cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:
            # No such day, or before 1677 or after 2262: which one is it?
            if end - begin == 1:
                bad[begin] = True
            else:
                spans += [(begin, (begin + end) // 2), ((begin + end) // 2, end)]
    return times
