"""Finds complete files below a directory or a prefix, and knows which were read (``FileLines``, ``WholeFiles``).

A file is identified by its path, its modification time and its size: its partition is ``HOST/PATH@MILLISECONDS-SIZE``,
without the host where all hosts see the same files. A file that was read to its end has its position in generation 1.

A file is remembered while it is there, because its time does not say when it came: a copy may keep an old time. A file
that is gone is forgotten once its time is older than ``max_age`` and it has been missing for an hour (or for
``max_age``, if that is less), as this process measures it. So the driver log does not grow without end where files are
taken away.
"""

from __future__ import annotations

import fnmatch
import math
import os
import re
import stat
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from receiver_runtime.receivers.files.content import (
    Content,
    DecompressedFile,
    LocalFile,
    OpenContents,
    OpenedFile,
    open_compressed,
)
from receiver_runtime.receivers.files.declaration import FileLines, is_unfinished
from receiver_runtime.receivers.files.file_kinds import KIND_BYTES, UnreadableKindError, codec_of, unread_files
from receiver_runtime.receivers.files.local_tree import LocalTree, SymlinkRefusedError
from receiver_runtime.receivers.files.records import LineReader, Part, Reading, read_whole
from receiver_runtime.watching.clock import Clock
from tracker_store.blocks.blocks import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from receiver_runtime.receivers.files.declaration import WholeFiles
    from receiver_runtime.receivers.files.file_kinds import Codec
    from receiver_runtime.receivers.files.records import Limits
    from receiver_runtime.receivers.files.sharing import Sharing
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import OffsetLink

_MOST_READY = 1000  # files to consider in one round; small ones are read together for one block, a large one alone
_SMALL_BYTES = 64 * 1024
_MOST_OPEN = 8
_LONGEST_RETRY = 300.0  # seconds, the limit of the backoff for a file that can't be read
_FORGET_SECONDS = 60.0  # how often to look for files to forget
# How long a file must be missing before it is forgotten: until then it may only be unavailable for a while.
_GONE_SECONDS = 3600.0
_SKEW_SECONDS = 60.0  # how far the clock of a file's writer may differ from ours
_AT_ONCE = 1000  # partitions to forget in one call to the driver log
_NAME = re.compile(r"(.*)@(-?\d+)-(\d+)", re.DOTALL)
_FINISHED = 1  # the generation of a file that was read to its end


@dataclass(frozen=True, slots=True)
class Found:
    """Describe a file of a listing; ``path`` is relative to the listed directory or prefix."""

    path: str
    size: int
    modified_ms: int


class Folder(Protocol):
    """List a directory or prefix, and open its files. Every method raises OSError."""

    @property
    def refused(self) -> Sequence[tuple[str, OSError]]:
        """Return the entries that the last listing left out although they lead to files, each with the reason."""
        ...

    def files(self) -> Iterator[Found]:
        """Yield every file below, in any order."""
        ...

    def open_plain(self, path: str) -> Content:
        """Open a file to read it as it is."""
        ...

    def open_raw(self, path: str) -> Any:  # noqa: ANN401  pyarrow has no types
        """Open a file as one of pyarrow's that can seek, to be decompressed."""
        ...

    def shown(self, path: str) -> str:
        """Return the whole path, as the file's records have it."""
        ...


class LocalFolder:
    """List a directory of this host, and open its files.

    With ``follow_symlinks``, links to files below it are read too.
    """

    def __init__(self, root: str, *, follow_symlinks: bool = False) -> None:
        self._root = root.rstrip("/") or "/"
        self._tree = LocalTree(self._root, follow_symlinks=follow_symlinks)
        self.refused: list[tuple[str, OSError]] = []

    def files(self) -> Iterator[Found]:
        """See ``Folder``. Raises also where a subdirectory can't be listed."""
        directories = [""]
        self.refused = []
        while directories:
            below = directories.pop()
            with os.scandir(f"{self._root}/{below}") as entries:
                for entry in entries:
                    if entry.name.startswith(("_", ".")):
                        continue
                    path = f"{below}{entry.name}"
                    status = self._status(entry, path)
                    if status is None:
                        continue
                    if stat.S_ISDIR(status.st_mode) and not entry.is_symlink():
                        directories.append(f"{path}/")
                    elif stat.S_ISREG(status.st_mode):
                        yield Found(path, status.st_size, status.st_mtime_ns // 10**6)

    def _status(self, entry: os.DirEntry[str], path: str) -> os.stat_result | None:
        """Return the status of an entry; None: it is gone, or a link that is not followed. Raises OSError."""
        if not entry.is_symlink():
            try:
                return entry.stat()
            except FileNotFoundError:
                return None
        try:
            return self._tree.status(self.shown(path))
        except SymlinkRefusedError as error:
            if _leads_to_file(entry):
                self.refused.append((path, error))
        except OSError:
            # It leads to itself, or to nothing.
            pass
        return None

    def open_plain(self, path: str) -> Content:
        """See ``Folder``."""
        return LocalFile(self.shown(path), self._tree)

    def open_raw(self, path: str) -> Any:  # noqa: ANN401
        """See ``Folder``."""
        return open_compressed(self.shown(path), self._tree)

    def shown(self, path: str) -> str:
        """See ``Folder``."""
        return f"{self._root}/{path}"


class ObjectFolder:
    """List the objects below a prefix, and open them.

    Args:
        filesystem: one of pyarrow's.
        prefix: the bucket and the path in it.
        url: the prefix's URL, for records and messages.
    """

    def __init__(self, filesystem: Any, prefix: str, url: str) -> None:  # noqa: ANN401
        self.refused = ()
        self._filesystem = filesystem
        self._prefix = prefix.strip("/")
        self._url = url.rstrip("/")

    def files(self) -> Iterator[Found]:
        """See ``Folder``."""
        from pyarrow.fs import FileSelector, FileType  # noqa: PLC0415  most read directories

        below = len(self._prefix) + 1
        # A prefix without objects is no error, but a missing bucket is one.
        if self._filesystem.get_file_info(self._prefix.partition("/")[0]).type == FileType.NotFound:
            raise FileNotFoundError(f"{self._url}: there is no such bucket")
        for info in self._filesystem.get_file_info(FileSelector(self._prefix, allow_not_found=True, recursive=True)):
            if info.type == FileType.File:
                yield Found(info.path[below:], info.size, info.mtime_ns // 10**6)

    def open_plain(self, path: str) -> Content:
        """See ``Folder``."""
        return OpenedFile(self._filesystem.open_input_file(f"{self._prefix}/{path}"))

    def open_raw(self, path: str) -> Any:  # noqa: ANN401
        """See ``Folder``."""
        return self._filesystem.open_input_file(f"{self._prefix}/{path}")

    def shown(self, path: str) -> str:
        """See ``Folder``."""
        return f"{self._url}/{path}"


def _leads_to_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


@dataclass(slots=True, eq=False)
class _Arrived:
    """Track a file that is not read to its end yet."""

    found: Found
    reading: Reading
    ours: bool
    first_seen: float
    ready: bool = False
    # How it is compressed, known once it was opened.
    codec: Codec | None = None
    refused: OSError | None = None
    failures: int = 0
    retry_at: float = 0.0


class ArrivingCatalog:
    """See the module, and ``reader.Catalog``."""

    def __init__(
        self,
        source: FileLines | WholeFiles,
        receiver: Receiver,
        sharing: Sharing,
        host: str,
        *,
        folder: Folder,
        clock: Clock | None = None,
    ) -> None:
        self.source = source.kind
        self._settings = source
        self._receiver = receiver
        self._positions = receiver.supervisor.block_path.positions
        self._sharing = sharing
        self._folder = folder
        self._clock = clock or Clock()
        self._prefix = "" if source.shared or source.is_object_store else f"{host}/"
        self._lines = (
            LineReader(encoding=source.encoding, max_record_bytes=source.max_record_bytes)
            if isinstance(source, FileLines)
            else None
        )
        self._open = OpenContents(_MOST_OPEN)
        self._known: dict[str, Position] = {}
        # The partition of the newest version that was read, or is being read, by path.
        self._versions: dict[str, str] = {}
        # Files that are not read to their end, by partition.
        self._waiting: dict[str, _Arrived] = {}
        self._queue: deque[_Arrived] = deque()
        self._present: dict[str, Found] = {}
        # Partitions whose files are missing, and since when.
        self._gone: dict[str, float] = {}
        self._look_at = 0.0
        self._forget_at = 0.0
        self._changed: list[Reading] = []
        self._reported: set[tuple[str, str]] = set()
        self._is_unavailable = False

    # -- the reader's side -------------------------------------------------------------------------------------------

    def reload(self, known: Mapping[str, Position]) -> None:
        """See ``Catalog``."""
        self._learn(known)
        self._changed = []
        # Check all present files again: a file that was finished here may not be so in the driver log.
        self._present = {}
        for name, file in list(self._waiting.items()):
            at = self._known.get(name)
            if at is not None and at.generation >= _FINISHED:
                self._let_go(name)
                continue
            file.ours = self._is_ours(file.found.path)
            file.reading.go_to(at)
        self._look_at = 0.0

    def release(self) -> None:
        """See ``Catalog``."""
        for file in self._waiting.values():
            file.ours = file.ours and self._is_ours(file.found.path)

    def look(self) -> None:
        """See ``Catalog``."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + self._settings.poll_interval
        try:
            present = {found.path: found for found in self._folder.files() if self._is_wanted(found.path)}
            for path, refused in self._folder.refused:
                if self._is_wanted(path):
                    self._report_once(path, "is not read", refused)
        except OSError as error:
            if not self._is_unavailable:
                self._is_unavailable = True
                self._receiver.report_error(f"{self._settings.path} can't be listed, it is tried again", error)
            self._receiver.report_degraded("listing", f"{self._settings.path} can't be listed: {error}")
            return
        if self._is_unavailable:
            self._is_unavailable = False
            self._receiver.report_degraded("listing", None)
            self._receiver.report_connected(self._settings.path)
        new = [found for path, found in present.items() if self._present.get(path) != found]
        if not self._sharing.is_alone and new:
            # Other receivers may have read the new files.
            self._learn(self._positions.all_of(self.source))
        self._see(new, now)
        self._drop_gone(present)
        self._present = present
        for file in self._waiting.values():
            file.ready = file.ready or self._is_complete(file, now)
        self._queue = deque(sorted((file for file in self._waiting.values() if file.ready and file.ours), key=_age))
        if now >= self._forget_at:
            self._forget(now)

    def ready(self) -> Iterable[Reading]:
        """See ``Catalog``. Files come in the order of time and path; a large one comes alone."""
        now = self._clock.monotonic()
        while self._queue and self._queue[0].reading.name not in self._waiting:
            self._queue.popleft()
        taken = 0
        for file in list(islice(self._queue, _MOST_READY)):
            if file.reading.name not in self._waiting or not file.ours or now < file.retry_at:
                continue
            small = file.found.size <= _SMALL_BYTES
            if small or not taken:
                taken += 1
                yield file.reading
            if not small:
                return

    def read(self, reading: Reading, limits: Limits) -> Part | None:
        """See ``Catalog``."""
        file = self._waiting.get(reading.name)
        if file is None or not file.ours:
            return None
        try:
            part = self._read(file, reading, limits)
        except OSError as error:
            self._open.close(reading.name)
            file.retry_at = self._clock.monotonic() + min(
                _LONGEST_RETRY, self._settings.poll_interval * 2**file.failures
            )
            file.failures = min(file.failures + 1, 20)
            is_refused = isinstance(error, UnreadableKindError)
            file.refused = error if is_refused else None
            self._show_refused()
            what = "is not read" if is_refused else "can't be read, it is tried again"
            self._report_once(file.found.path, what, error)
            return None
        if part.hole is not None:
            self._receiver.report_error(part.hole.words(self._folder.shown(file.found.path)))
        if not part.more:
            self._finish(reading)
        return part

    def take_changed(self) -> list[Reading]:
        """See ``Catalog``."""
        changed, self._changed = self._changed, []
        return changed

    def registered(self, links: Sequence[OffsetLink]) -> None:
        """See ``Catalog``."""
        del links

    def close(self) -> None:
        """See ``Catalog``."""
        self._open.close_all()

    # -- what is present ---------------------------------------------------------------------------------------------

    def _is_wanted(self, path: str) -> bool:
        parts = PurePosixPath(path).parts
        return (
            not any(part.startswith(("_", ".")) for part in parts)
            and not is_unfinished(parts[-1], self._settings.unfinished)
            and fnmatch.fnmatchcase(parts[-1], self._settings.pattern)
        )

    def _see(self, new: Sequence[Found], now: float) -> None:
        for found in new:
            name = self._name(found)
            if name in self._known and self._known[name].generation >= _FINISHED:
                continue
            if name in self._waiting:
                continue
            before = self._versions.get(found.path)
            if before is not None and before != name and not self._take_changed_file(found, before):
                continue
            reading = Reading(name)
            reading.go_to(self._known.get(name))
            self._versions[found.path] = name
            self._waiting[name] = _Arrived(found, reading, self._is_ours(found.path), now)

    def _take_changed_file(self, found: Found, before: str) -> bool:
        """Report that a path has another file now; return whether to read it."""
        waiting = self._waiting.get(before)
        if waiting is not None:
            begun = waiting.reading.position > waiting.reading.start
            if begun and waiting.ours:
                self._lose(waiting, "was changed while it was read")
            self._let_go(before)
            if not begun:
                return True
        reads = self._settings.changed == "read"
        if self._is_ours(found.path):
            what = "it is read again" if reads else "the changed file is not read"
            self._receiver.report_error(f"{self._folder.shown(found.path)} was changed after it was read: {what}")
        return reads

    def _drop_gone(self, present: Mapping[str, Found]) -> None:
        for name, file in list(self._waiting.items()):
            if file.found.path not in present:
                if file.ours and file.ready:
                    self._lose(file, "is gone")
                self._let_go(name)

    def _lose(self, file: _Arrived, what: str) -> None:
        reading, size = file.reading, file.found.size
        path = self._folder.shown(file.found.path)
        if file.codec is not None:
            self._receiver.report_error(f"{path} {what}, and was not read to its end")
        elif size > reading.position:
            self._receiver.report_error(
                f"{path} {what}: bytes {reading.position} up to {size}, {size - reading.position} of them, are lost"
            )
            reading.lose(self.source, size)
            self._changed.append(reading)

    def _let_go(self, name: str) -> None:
        gone = self._waiting.pop(name, None)
        self._open.close(name)
        if gone is not None and gone.refused is not None:
            self._show_refused()

    def _is_complete(self, file: _Arrived, now: float) -> bool:
        """Return whether the file has not changed for ``min_age`` and is therefore complete.

        Our own clock measures that, from when the file was first seen. Its time counts only where it is older than any
        difference between clocks.
        """
        age = time.time() - file.found.modified_ms / 1000
        return now - file.first_seen >= self._settings.min_age or age >= self._settings.min_age + _SKEW_SECONDS

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read(self, file: _Arrived, reading: Reading, limits: Limits) -> Part:
        found = file.found
        shown = self._folder.shown(found.path)
        content = self._open.get(reading.name)
        if content is None:
            content = self._opened(file)
            self._open.put(reading.name, content)
        at, large = reading.position, reading.large
        if self._lines is None:
            most = self._settings.max_record_bytes
            part = read_whole(
                reading, content, path=shown, modified_ms=found.modified_ms, size=found.size, max_record_bytes=most
            )
        else:
            part = self._lines.read(reading, content, limits, path=shown, modified_ms=found.modified_ms, ends=True)
        if isinstance(content, LocalFile):
            status = content.stat
            # Checked after the read: if the file is still being written to, drop what was read.
            if (status.st_size, status.st_mtime_ns // 10**6) != (found.size, found.modified_ms):
                reading.position, reading.large = at, large
                self._look_at = 0.0
                raise OSError("it was changed just now")
        return part

    def _opened(self, file: _Arrived) -> Content:
        """Open a file, decompressed if its lines are wanted. Raises OSError, and UnreadableKindError."""
        path = file.found.path
        content = self._folder.open_plain(path)
        if self._lines is None:
            return content
        try:
            file.codec = codec_of(content.read(0, KIND_BYTES))
        except BaseException:
            content.close()
            raise
        if file.codec is None:
            return content
        content.close()
        return DecompressedFile(partial(self._folder.open_raw, path), file.codec)

    def _show_refused(self) -> None:
        """Show in the receiver's status, for as long as they are there, the files whose kind is not read."""
        refused = [
            (self._folder.shown(file.found.path), file.refused)
            for file in self._waiting.values()
            if file.refused is not None
        ]
        self._receiver.report_degraded("kinds of files", unread_files(refused))

    def _finish(self, reading: Reading) -> None:
        """Note that a file is read to its end. The link for that goes in with its last records, or the next block."""
        reading.end(self.source)
        self._known[reading.name] = Position(reading.generation, reading.logged)
        self._let_go(reading.name)
        self._changed.append(reading)

    # -- what is gone ------------------------------------------------------------------------------------------------

    def _forget(self, now: float) -> None:
        """Have the driver log forget old files that have been gone for long.

        It forgets nothing while no file is present at all: then the whole directory may be unavailable.
        """
        if not self._present:
            return
        self._forget_at = now + _FORGET_SECONDS
        if not self._is_ours("@forget"):
            self._gone = {}
            return
        if not self._sharing.is_alone:
            self._learn(self._positions.all_of(self.source))
        there = {self._name(found) for found in self._present.values()}
        # Where a changed file is not read again, the earlier version that was read stays remembered.
        there |= {self._versions[path] for path in self._present if path in self._versions}
        self._gone = {name: self._gone.get(name, now) for name in self._known if name not in there}
        oldest = (time.time() - self._settings.max_age) * 1000
        old = [
            name
            for name, since in self._gone.items()
            if now - since >= min(_GONE_SECONDS, self._settings.max_age) and _time_of(name) < oldest
        ]
        for first in range(0, len(old), _AT_ONCE):
            self._positions.forget(self.source, old[first : first + _AT_ONCE])
        if old:
            self._learn(self._positions.all_of(self.source))

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _learn(self, known: Mapping[str, Position]) -> None:
        self._known = {name: at for name, at in known.items() if name.startswith(self._prefix)}
        self._versions = {}
        for name in [*self._known, *self._waiting]:
            match = _NAME.fullmatch(name.removeprefix(self._prefix))
            if match is not None:
                before = self._versions.get(match[1])
                if before is None or _time_of(before) <= int(match[2]):
                    self._versions[match[1]] = name

    def _name(self, found: Found) -> str:
        path = found.path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        return f"{self._prefix}{path}@{found.modified_ms}-{found.size}"

    def _is_ours(self, path: str) -> bool:
        return self._sharing.is_ours(path)

    def _report_once(self, path: str, what: str, error: OSError) -> None:
        """Report an error once for each file and reason."""
        reported = (path, str(error))
        if reported not in self._reported:
            self._reported.add(reported)
            self._receiver.report_error(f"{self._folder.shown(path)} {what}", error)


def _age(file: _Arrived) -> tuple[int, str]:
    return file.found.modified_ms, file.found.path


def _time_of(name: str) -> float:
    """Return a file's time, from its partition's name; infinity for a name of another form."""
    match = _NAME.fullmatch(name)
    return math.inf if match is None else int(match[2])
