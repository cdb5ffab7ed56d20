"""Finds complete files below a directory or a prefix, and knows which were read (``FileLines``, ``WholeFiles``).

This module owns the files that are not read to their end: which are complete, in which order they are read, and what
is lost of them. ``listing`` says what is present, ``remembered_files`` what was read.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from receiver_runtime.receivers.files.archives import Archive, open_archive
from receiver_runtime.receivers.files.content import Content, DecompressedFile, LocalFile, OpenContents
from receiver_runtime.receivers.files.declaration import FileLines
from receiver_runtime.receivers.files.file_kinds import (
    KIND_BYTES,
    DamagedError,
    UnreadableKindError,
    codec_of,
    unread_files,
)
from receiver_runtime.receivers.files.listing import Listing
from receiver_runtime.receivers.files.records import LineReader, Part, Reading, read_whole
from receiver_runtime.receivers.files.remembered_files import RememberedFiles
from receiver_runtime.watching.clock import Clock
from tracker_store.receivers.source_lag import Unread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.receivers.files.archives import Member
    from receiver_runtime.receivers.files.declaration import WholeFiles
    from receiver_runtime.receivers.files.folders import Folder, Found
    from receiver_runtime.receivers.files.records import Limits
    from receiver_runtime.receivers.files.sharing import Sharing
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import OffsetLink, Position
    from tracker_store.receivers.source_lag import Place

_MOST_READY = 1000  # files to consider in one round; small ones are read together for one block, a large one alone
_SMALL_BYTES = 64 * 1024
_MOST_OPEN = 8
_SHOWN_FAILURES = 3  # a file may be under way: how often it can't be read before the receiver's status shows it
_LONGEST_RETRY = 300.0  # seconds, the limit of the backoff for a file that can't be read
_SKEW_SECONDS = 60.0  # how far the clock of a file's writer may differ from ours


@dataclass(slots=True, eq=False)
class _Arrived:
    """Track a file that is not read to its end yet."""

    found: Found
    reading: Reading
    ours: bool
    first_seen: float
    ready: bool = False
    # Known once it was opened: whether its positions are those of its own bytes.
    is_plain: bool = True
    # Of an archive, how far the file in it is read that is under way.
    member: Reading | None = None
    refused: OSError | None = None
    # Why it could not be read the last times; it is tried again.
    unreadable: OSError | None = None
    failures: int = 0
    retry_at: float = 0.0


class _PieceReader:
    """Read the next piece of a file, or of a file in an archive."""

    def __init__(
        self,
        source: FileLines | WholeFiles,
        receiver: Receiver,
        folder: Folder,
        listing: Listing,
    ) -> None:
        self._settings = source
        self._receiver = receiver
        self._folder = folder
        self._listing = listing
        #: Whether a file was changed while it was read, in the last call.
        self.has_changed = False
        self._lines = LineReader.of(source) if isinstance(source, FileLines) else None
        # Contents, and archives.
        self.open: OpenContents[Any] = OpenContents(_MOST_OPEN)

    def read(self, file: _Arrived, reading: Reading, limits: Limits) -> Part:
        """Return the file's next piece. Raises OSError."""
        self.has_changed = False
        found, lines = file.found, self._lines
        shown = self._folder.shown(found.path)
        content: Any = self.open.get(reading.name)
        if content is None:
            content = _opened(self._folder, file, unpacks=lines is not None)
            self.open.put(reading.name, content)
        at, large = reading.position, reading.large
        if lines is not None and isinstance(content, Archive):
            return self._read_archive(file, reading, content, lines, limits)
        if lines is None:
            most = self._settings.max_record_bytes
            part = read_whole(
                reading, content, path=shown, modified_ms=found.modified_ms, size=found.size, max_record_bytes=most
            )
        else:
            part = lines.read(reading, content, limits, path=shown, modified_ms=found.modified_ms, ends=True)
        if isinstance(content, LocalFile):
            # Checked after the read: if the file is still being written to, drop what was read.
            try:
                self._compare(content, found)
            except OSError:
                reading.position, reading.large = at, large
                raise
        return part

    def _read_archive(
        self, file: _Arrived, reading: Reading, archive: Archive, lines: LineReader, limits: Limits
    ) -> Part:
        """Read the next pieces of the files in an archive, from the position on."""
        whole, nbytes, rows = Part(more=True), 0, 0
        batches: list[pa.RecordBatch] = []
        letters: list[DeadLetter] = []
        # Many small files are one block.
        for _ in range(_MOST_READY):
            try:
                member = archive.at(reading.position)
                part = None if member is None else self._read_member(file, reading, archive, member, lines, limits)
            except OSError:
                if not batches and not letters:
                    raise
                # What was read before it counts: the next read meets it again.
                break
            if part is None:
                whole.more = False
                break
            letters += part.letters
            if part.batch is not None:
                batches.append(part.batch)
                nbytes += part.batch.nbytes
                rows += part.batch.num_rows
            if nbytes >= limits.nbytes or rows >= limits.lines:
                break
        whole.letters = letters
        if batches:
            whole.batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return whole

    def _read_member(
        self,
        file: _Arrived,
        reading: Reading,
        archive: Archive,
        member: Member,
        lines: LineReader,
        limits: Limits,
    ) -> Part:
        """Read the next piece of a file in an archive; one that is bad is put aside."""
        name, inner = f"{file.found.path}/{member.name}", file.member
        shown, at = self._folder.shown(name), reading.position - member.start
        if inner is None or (inner.start, inner.position) != (member.start, at):
            inner = file.member = Reading(name, start=member.start, position=at)
        try:
            part = lines.read(
                inner,
                archive.content(member),
                limits,
                path=shown,
                modified_ms=file.found.modified_ms,
                ends=True,
            )
        except (DamagedError, UnreadableKindError) as error:
            self._check_unchanged(file)
            why = f"it is {error.what}" if isinstance(error, UnreadableKindError) else str(error)
            self._listing.report_once(name, f"is not read, and the other files in the archive are: {why}", error)
            reading.lose(self._settings.kind, member.end)
            return Part()
        if part.hole is not None:
            self._receiver.report_error(part.hole.words(shown))
        reading.position = member.start + inner.position if part.more else member.end
        return part

    def _check_unchanged(self, file: _Arrived) -> None:
        """Raise OSError if a file is still being written to: then nothing of it is damaged. Objects never are."""
        content = self._folder.open_plain(file.found.path)
        try:
            if isinstance(content, LocalFile):
                self._compare(content, file.found)
        finally:
            content.close()

    def _compare(self, content: LocalFile, found: Found) -> None:
        status = content.stat
        if (status.st_size, status.st_mtime_ns // 10**6) != (found.size, found.modified_ms):
            self.has_changed = True
            raise OSError("it was changed just now")


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
        self._listing = Listing(source, receiver, folder)
        self._remembered = RememberedFiles(
            self._positions,
            source=source.kind,
            prefix="" if source.shared or source.is_object_store else f"{host}/",
            max_age=source.max_age,
        )
        self._clock = clock or Clock()
        self._pieces = _PieceReader(source, receiver, folder, self._listing)
        # Files that are not read to their end, by partition.
        self._waiting: dict[str, _Arrived] = {}
        self._queue: deque[_Arrived] = deque()
        self._present: dict[str, Found] = {}
        self._look_at = 0.0
        self._changed: list[Reading] = []

    # -- the reader's side -------------------------------------------------------------------------------------------

    def reload(self, known: Mapping[str, Position]) -> None:
        """See ``Catalog``."""
        self._remembered.learn(known, self._waiting)
        self._changed = []
        # Check all present files again: a file that was finished here may not be so in the driver log.
        self._present = {}
        for name, file in list(self._waiting.items()):
            if self._remembered.is_finished(name):
                self._let_go(name)
                continue
            file.ours = self._sharing.is_ours(file.found.path)
            file.reading.go_to(self._remembered.position(name))
        self._look_at = 0.0
        self._show_unread()

    def release(self) -> None:
        """See ``Catalog``."""
        for file in self._waiting.values():
            file.ours = file.ours and self._sharing.is_ours(file.found.path)
        self._show_unread()

    def look(self) -> None:
        """See ``Catalog``."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + self._settings.poll_interval
        present = self._listing.present()
        if present is None:
            return
        new = [found for path, found in present.items() if self._present.get(path) != found]
        if not self._sharing.is_alone and new:
            # Other receivers may have read the new files.
            self._remembered.refresh(self._waiting)
        self._see(new, now)
        for name, file in list(self._waiting.items()):
            if file.found.path not in present:
                if file.ours and file.ready:
                    self._lose(file, "is gone")
                self._let_go(name)
        self._present = present
        for file in self._waiting.values():
            file.ready = file.ready or _is_complete(file, now, self._settings.min_age)
        self._queue = deque(sorted((file for file in self._waiting.values() if file.ready and file.ours), key=_age))
        self._remembered.forget(now, present, self._waiting, self._sharing)

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
            part = self._pieces.read(file, reading, limits)
        except OSError as error:
            self._pieces.open.close(reading.name)
            file.retry_at = self._clock.monotonic() + min(
                _LONGEST_RETRY, self._settings.poll_interval * 2**file.failures
            )
            file.failures = min(file.failures + 1, 20)
            is_refused = isinstance(error, UnreadableKindError)
            file.refused = error if is_refused else None
            file.unreadable = error if file.failures >= _SHOWN_FAILURES else None
            self._show_unread()
            what = "is not read" if is_refused else "can't be read, it is tried again"
            self._listing.report_once(file.found.path, what, error)
            return None
        finally:
            if self._pieces.has_changed:
                self._look_at = 0.0
        if file.failures:
            file.failures, file.unreadable = 0, None
            self._show_unread()
        if part.hole is not None:
            self._receiver.report_error(part.hole.words(self._folder.shown(file.found.path)))
        if not part.more:
            # The link for the end goes in with its last records, or the next block.
            reading.end(self.source)
            self._remembered.finish(reading)
            self._let_go(reading.name)
            self._changed.append(reading)
        return part

    def take_changed(self) -> list[Reading]:
        """See ``Catalog``."""
        changed, self._changed = self._changed, []
        return changed

    def registered(self, links: Sequence[OffsetLink]) -> None:
        """See ``Catalog``."""
        del links

    def unread(self) -> Mapping[Place, Unread]:
        """See ``Catalog``: how many complete files wait, and since when the oldest is as it is."""
        waiting = [file for file in self._queue if file.reading.name in self._waiting and file.refused is None]
        oldest = min((file.found.modified_ms for file in waiting), default=None)
        # Receivers that share the files have a share each.
        place = (self.source, f"files of receiver {self._positions.receiver_id}")
        return {place: Unread(len(waiting), "files", oldest_at=None if oldest is None else oldest / 1000)}

    def close(self) -> None:
        """See ``Catalog``."""
        self._pieces.open.close_all()

    # -- what is present ---------------------------------------------------------------------------------------------

    def _see(self, new: Sequence[Found], now: float) -> None:
        for found in new:
            name = self._remembered.name(found)
            if self._remembered.is_finished(name):
                continue
            if name in self._waiting:
                continue
            before = self._remembered.versions.get(found.path)
            if before is not None and before != name and not self._take_changed_file(found, before):
                continue
            reading = Reading(name)
            reading.go_to(self._remembered.position(name))
            self._remembered.versions[found.path] = name
            self._waiting[name] = _Arrived(found, reading, self._sharing.is_ours(found.path), now)

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
        if self._sharing.is_ours(found.path):
            what = "it is read again" if reads else "the changed file is not read"
            self._receiver.report_error(f"{self._folder.shown(found.path)} was changed after it was read: {what}")
        return reads

    def _lose(self, file: _Arrived, what: str) -> None:
        reading, size = file.reading, file.found.size
        path = self._folder.shown(file.found.path)
        if not file.is_plain:
            self._receiver.report_error(f"{path} {what}, and was not read to its end")
        elif size > reading.position:
            self._receiver.report_error(
                f"{path} {what}: bytes {reading.position} up to {size}, {size - reading.position} of them, are lost"
            )
            reading.lose(self.source, size)
            self._changed.append(reading)

    def _let_go(self, name: str) -> None:
        gone = self._waiting.pop(name, None)
        self._pieces.open.close(name)
        if gone is not None and gone.failures:
            self._show_unread()

    def _show_unread(self) -> None:
        """Show in the receiver's status, for as long as they are there and its own, the files that are not read."""
        unread = [
            (self._folder.shown(file.found.path), why)
            for file in self._waiting.values()
            if file.ours and (why := file.refused or file.unreadable) is not None
        ]
        self._receiver.report_degraded("kinds of files", unread_files(unread))


def _age(file: _Arrived) -> tuple[int, str]:
    return file.found.modified_ms, file.found.path


def _is_complete(file: _Arrived, now: float, min_age: float) -> bool:
    """Return whether the file has not changed for ``min_age`` seconds and is therefore complete.

    Our own clock measures that, from when the file was first seen. Its time counts only where it is older than any
    difference between clocks.
    """
    age = time.time() - file.found.modified_ms / 1000
    return now - file.first_seen >= min_age or age >= min_age + _SKEW_SECONDS


def _opened(folder: Folder, file: _Arrived, *, unpacks: bool) -> Content | Archive | None:
    """Open a file, unpacked if its lines are wanted. Raises OSError, and UnreadableKindError."""
    path = file.found.path
    open_raw = partial(folder.open_raw, path)
    content = folder.open_plain(path)
    if not unpacks:
        return content
    try:
        head = content.read(0, KIND_BYTES)
        archive = open_archive(open_raw, head)
        codec = None if archive is not None else codec_of(head)
    except BaseException:
        content.close()
        raise
    if archive is None and codec is None:
        return content
    file.is_plain = False
    content.close()
    return DecompressedFile(open_raw, codec) if codec is not None else archive
