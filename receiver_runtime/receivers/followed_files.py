"""Which files a pattern matches, which of them is which, and what became of those that are gone (``FollowedFiles``).

A file is known by its *print*, its first line or lines, and its inode: not by its name. So

- renamed, it is the same file, read on to its end;
- copied and cut (copytruncate), or compressed, its *content* is what goes on: another file with the same beginning,
  when the first one is there no more or has another beginning now, is read from where that one was;
- cut, its content is over: what was seen there and not read is lost, unless a copy of it appears;
- an inode that is used again has another print.

While a copy and what it was made of are both there, the copy waits. Nothing here is remembered anywhere but in the
driver log, by the names of partitions: ``HOST/INODE/LENGTH-DIGEST`` (``~1`` behind it for a second that begins so);
``HOST/=+0:LENGTH-DIGEST`` before that (``+1`` for the second): who begins a content first puts its inode there, and
whoever finds another's there takes that one's name, so that one content has one name wherever it lies by then;
``HOST/zSIZE-DIGEST`` for a compressed file that has been read to its end, so that it is not decompressed again with
each start; and that of a content with ``+GENERATION:LENGTH-DIGEST`` behind it, its *second print* and its *marks*.

The second print is of what was read of it first, beyond its print. It goes in with that very block, and tells apart
what begins with the same header. With it goes ``HOST/==+0:LENGTH-DIGEST``, of the line behind the print: of two that
read one content by two names, whoever comes second is refused and looks again (``+1`` for another content that goes
on with the same line). A mark is of the last 4 KiB before ``LENGTH``: where a file is found again, it is compared
there as well. There is one with each block that brings a file to four times its length, and one where it has stood
still.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import hashlib
import itertools
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.clock import SystemClock
from receiver_runtime.receivers.file_content import DecompressedFile, LocalFile, OpenContents, codec_of
from receiver_runtime.receivers.file_records import LineReader, Part, Reading
from tracker_store.blocks import ORIGIN, OffsetLink, Position
from tracker_store.schema import LinkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from receiver_runtime.clock import Clock
    from receiver_runtime.receiver import Receiver
    from receiver_runtime.receivers.file_records import Limits
    from receiver_runtime.receivers.file_sharing import Sharing
    from receiver_runtime.sources.files import FollowedFiles

_PRINT_BYTES = 4096
_TAIL_BYTES = 64
_OVERLAP_BYTES = 65_536
_MOST_OPEN = 128
_MOST_OPEN_COMPRESSED = 4
# A file that grew is looked at with each block for so long.
_HOT_SECONDS = 10.0
# So long a copy of what is gone or cut may take to appear, and a copy waits for what it was made of to be cut.
_COPY_SECONDS = 5.0
_LONGEST_COPY_SECONDS = 60.0
_FORGET_SECONDS = 60.0
# A file that is so many times as long as at its last mark has another; one that stands still has, too, a few at a time.
_MARK_TIMES = 4
_MOST_MARKED = 20
_NAME = re.compile(r"([0-9a-f]+)/(\d+)-([0-9a-f]+)(?:~(\d+))?")
_SECOND = re.compile(r"(.+)\+(\d+):(\d+)-([0-9a-f]+)")
# Who first begins a content with that print, and so many others known that have it, by its inode: the offset.
_CLAIM = re.compile(r"=\+(\d+):(\d+)-([0-9a-f]+)")
# Who first goes on with that line behind a print: the offset is the number of its name.
_BEYOND = re.compile(r"==\+(\d+):(\d+-[0-9a-f]+)")
# Inodes are offsets in the driver log.
_INODE_BITS = (1 << 63) - 1
_START = "@start"

Key = tuple[int, int]
Print = tuple[int, str]


@dataclass(slots=True, eq=False)
class _File:
    """One file, or one content that is in no file now (``key`` is None)."""

    key: Key | None
    path: str
    codec: str | None
    size: int
    mtime_ns: int
    grown_at: float
    reading: Reading | None = None
    print_: Print = (0, "")
    #: Of more of its beginning; None: no more than the print has been read.
    second: Print | None = None
    #: The length at its last mark.
    marked: int = 0
    #: As much was known when it was given its name.
    bound_at: int = 0
    #: Where a content was that is in no file now.
    was: Key | None = None
    ours: bool = False
    tail: bytes = b""
    #: The size at which its last line had not ended.
    waits_at: int = -1
    gone_since: float | None = None
    #: While it waits, as the copy of a file that is there: when it was first seen as one, and last seen to grow.
    held_since: float | None = None
    held_from: float = 0.0
    #: A compressed file that is read to its end, is marked so, and could not be read as it was then.
    done: bool = False
    marker: str | None = None
    failed: tuple[int, int] | None = None
    registered: int = -1
    #: False: it was changed since its beginning was last looked at.
    is_checked: bool = True

    @property
    def is_there(self) -> bool:
        """Is the content in a file of the directory?"""
        return self.key is not None and self.gone_since is None


class FollowedCatalog:
    """See the module, and ``file_reader.Catalog``."""

    source = "followed_files"

    def __init__(
        self, source: FollowedFiles, receiver: Receiver, sharing: Sharing, host: str, *, clock: Clock | None = None
    ) -> None:
        self._settings = source
        self._clock = clock or SystemClock()
        self._receiver = receiver
        self._positions = receiver.supervisor.positions
        self._sharing = sharing
        self._prefix = "" if source.shared else f"{host}/"
        self._base = _base_of(source.path)
        self._lines = LineReader(encoding=source.encoding, max_record_bytes=source.max_record_bytes)
        self._open = OpenContents(_MOST_OPEN)
        self._decompressed = OpenContents(_MOST_OPEN_COMPRESSED)
        self._files: dict[Key, _File] = {}
        # Contents that are in no file now.
        self._orphans: list[_File] = []
        self._bound: dict[str, _File] = {}
        self._known: dict[str, Position] = {}
        # The names of contents that somebody reads or is about to read, read or not.
        self._claimed: set[str] = set()
        self._by_print: dict[Print, set[str]] = {}
        self._by_inode: dict[str, list[str]] = {}
        # By name and generation: of as much of its beginning as there is one of; and the mark behind that.
        self._seconds: dict[tuple[str, int], Print] = {}
        self._marks: dict[tuple[str, int], Print] = {}
        # When a second print was first seen in the driver log, as a count of how often that was asked.
        self._seen_at: dict[tuple[str, int], int] = {}
        self._asked = 0
        self._by_second: dict[Print, list[tuple[str, int]]] = {}
        # The next number of a line behind a print.
        self._beyond: dict[str, int] = {}
        self._changed: list[Reading] = []
        self._look_at = 0.0
        self._known_is_new = False
        self._told: set[tuple[str, str]] = set()
        self._has_told_of_the_same_lines = False
        # While files are given their names: what came there is not among them.
        self._some_was_cut = False
        self._is_away = False
        self._gone: dict[str, float] = {}
        self._forget_at = self._clock.monotonic() + min(_FORGET_SECONDS, source.forget_after)

    # -- the reader's side -------------------------------------------------------------------------------------------

    def reload(self, known: Mapping[str, Position]) -> None:
        """See ``Catalog``."""
        self._learn(known)
        self._identify_anew_what_is_not_claimed()
        self._changed = []
        for file in [*self._files.values(), *self._orphans]:
            reading = file.reading
            if reading is None:
                continue
            file.ours = self._is_ours(file)
            reading.go_to(self._known.get(reading.name))
            self._take_prints(file, reading)
            file.tail = b""
            file.waits_at = -1
            file.registered = reading.logged
            file.done = file.marker in self._known
        self._look_at = 0.0

    def release(self) -> None:
        """See ``Catalog``."""
        for file in [*self._files.values(), *self._orphans]:
            file.ours = file.ours and self._is_ours(file)

    def look(self) -> None:
        """See ``Catalog``."""
        now = self._clock.monotonic()
        if now < self._look_at:
            self._look_at_hot(now)
            return
        self._look_at = now + self._settings.poll_interval
        self._known_is_new = self._sharing.is_alone
        found = self._find()
        if found is None:
            return
        self._note(found, now)
        self._check_what_changed()
        first = self._settings.start == "latest" and f"{self._prefix}{_START}" not in self._known
        if self._identify(now, at_end=first) and first:
            self._put_at_once(f"{self._prefix}{_START}")
        self._give_up_what_is_gone(now)
        self._mark_done()
        self._mark_what_stands_still(now)
        if now >= self._forget_at:
            self._forget(now)

    def ready(self) -> Iterable[Reading]:
        """See ``Catalog``."""
        now = self._clock.monotonic()
        files = [file for file in [*self._files.values(), *self._orphans] if self._has_more(file, now)]
        return [file.reading for file in sorted(files, key=_age) if file.reading is not None]

    def read(self, reading: Reading, limits: Limits) -> Part | None:
        """See ``Catalog``."""
        file = self._bound.get(reading.name)
        if file is None or not file.ours:
            return None
        if not self._is_claimed(reading.name):
            # It was another's when it was named; that one may have named it otherwise.
            self._identify_anew_what_is_not_claimed()
            return None
        try:
            return (self._read_plain if file.codec is None else self._unpack)(file, reading, limits)
        except OSError as error:
            self._tell(file.path, "can't be read, it is tried again", error)
            file.failed = (file.size, file.mtime_ns)
            return None

    def take_changed(self) -> list[Reading]:
        """See ``Catalog``."""
        changed, self._changed = self._changed, []
        return changed

    def registered(self, links: Sequence[OffsetLink]) -> None:
        """See ``Catalog``."""
        for link in links:
            file = self._bound.get(link.partition)
            if file is not None:
                file.registered = link.to_offset

    def close(self) -> None:
        """See ``Catalog``."""
        self._open.close_all()
        self._decompressed.close_all()

    # -- the directory -----------------------------------------------------------------------------------------------

    def _find(self) -> dict[Key, tuple[str, os.stat_result]] | None:
        """What the pattern matches now; None: the directory can't be seen, and nothing is known of it."""
        try:
            with os.scandir(self._base):
                pass
        except OSError as error:
            if not self._is_away:
                self._is_away = True
                self._receiver.report_error(f"{self._base} can't be listed, it is tried again", error)
            return None
        if self._is_away:
            self._is_away = False
            self._receiver.report_connected(self._settings.path)
        found: dict[Key, tuple[str, os.stat_result]] = {}
        for path in sorted(glob.iglob(self._settings.path, recursive=True)):  # noqa: PTH207  likewise
            name = os.path.basename(path)  # noqa: PTH119  of thousands, each second
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self._settings.exclude):
                continue
            try:
                status = os.stat(path)  # noqa: PTH116  likewise
            except FileNotFoundError:
                continue
            except OSError as error:
                self._tell(path, "can't be looked at, it is tried again", error)
                continue
            if stat.S_ISREG(status.st_mode):
                found.setdefault((status.st_dev, status.st_ino), (path, status))
        return found

    def _note(self, found: Mapping[Key, tuple[str, os.stat_result]], now: float) -> None:
        for key, (path, status) in found.items():
            file = self._files.get(key)
            if file is None:
                self._files[key] = _File(key, path, codec_of(path), status.st_size, status.st_mtime_ns, now)
                continue
            file.path = path
            file.gone_since = None
            if file.codec is None:
                file.failed = None
            if codec_of(path) != file.codec:
                # A file system gives inodes out again at once.
                self._cut(file)
                continue
            self._see(file, status, now)
        for key in self._files.keys() - found.keys():
            file = self._files[key]
            # A directory that is moved away may come back.
            if file.gone_since is None and os.path.isdir(os.path.dirname(file.path)):  # noqa: PTH112, PTH120  likewise
                file.gone_since = now
            content = None if file.reading is None else self._open.get(file.reading.name)
            if isinstance(content, LocalFile):
                # It may be written to yet.
                file.size = max(file.size, content.stat.st_size)

    def _check_what_changed(self) -> None:
        """Who reads a file sees that it has another content. Of others it is seen here: it may be ours by that.

        Where files came, or were cut, it is seen here of all: one may have the inode of a file that another goes on
        with.
        """
        changed = [
            file
            for file in self._files.values()
            if not file.is_checked and file.reading is not None and file.codec is None and file.is_there
        ]
        read_on = {file for file in changed if file.ours and file.reading and file.size > file.reading.position}
        for file in changed:
            file.is_checked = True
            if file not in read_on:
                self._check(file)
        if any(file.reading is None for file in self._files.values()):
            for file in read_on:
                self._check(file)

    def _check(self, file: _File) -> None:
        if self._is_still(file):
            return
        with contextlib.suppress(OSError):
            status = os.stat(file.path)  # noqa: PTH116  of many, with each look
            if file.key is None and (status.st_dev, status.st_ino) == file.was:
                self._see(self._files[file.was], status, self._clock.monotonic())

    def _look_at_hot(self, now: float) -> None:
        for file in list(self._files.values()):
            if not file.ours or file.gone_since is not None or now - file.grown_at > _HOT_SECONDS:
                continue
            try:
                status = os.stat(file.path)  # noqa: PTH116  of many, with each block
            except OSError:
                self._look_at = 0.0
                continue
            if (status.st_dev, status.st_ino) == file.key:
                self._see(file, status, now)
            else:
                self._look_at = 0.0

    def _see(self, file: _File, status: os.stat_result, now: float) -> None:
        if status.st_size != file.size or status.st_mtime_ns != file.mtime_ns:
            reading = file.reading
            if reading is not None and (file.codec is not None or status.st_size < reading.position):
                # What is compressed does not grow: it is being made yet, or is another file.
                self._cut(file)
                return
            file.size, file.mtime_ns, file.grown_at = status.st_size, status.st_mtime_ns, now
            file.is_checked = False

    # -- which file is which -----------------------------------------------------------------------------------------

    def _identify(self, now: float, *, at_end: bool) -> bool:
        """Find the contents of files among those that are known, or give them names; or leave that for later.

        False: others know more than we did, and it is to be begun again.

        First what is where it was, for another file may begin alike; last the files that had another content before,
        for that may have gone on in a copy.
        """
        unknown: list[tuple[_File, bytes]] = []
        for file in list(self._files.values()):
            if file.reading is None and file.gone_since is None:
                with self._tried_again(file):
                    unknown += self._look_into(file, now)
        self._some_was_cut = False
        # The order is the same for all receivers: two that both read a file must give it one name.
        for file, head in sorted(unknown, key=lambda one: (self._had_one_alike(*one), one[0].path)):
            name = None
            if self._files.get(file.key or (0, 0)) is file:
                with self._tried_again(file):
                    name = self._name(file, head, now, unknown)
            if name is None:
                continue
            if not self._is_claimed(name) and (at_end or self._is_ours(file)):
                if not self._claim(file, name):
                    # Another began this content, or one that begins alike, since we learned what is known.
                    self._learn(self._positions.all_of(self.source))
                    self._identify_anew_what_is_not_claimed()
                    return False
                if at_end:
                    self._begin_at_end(file, name, head)
            reading = Reading(name)
            reading.go_to(self._known.get(name))
            self._bind(file, reading)
            self._tell_of_what_was_not_compared(file, reading)
        return True

    def _look_into(self, file: _File, now: float) -> list[tuple[_File, bytes]]:
        """The beginning of a file, unless it is where it was, or is to wait. Raises OSError."""
        head = self._inspect(file, now)
        if head is None:
            return []
        if not self._is_where_it_was(file, head, is_sure=True):
            return [(file, head)]
        there = file if file.was is None else self._files.get(file.was, file)
        if there is file or (head := self._inspect(there, now)) is None:
            return []
        # It was, and was cut.
        return [(there, head)]

    @contextlib.contextmanager
    def _tried_again(self, file: _File) -> Iterator[None]:
        """Of what can't be compared nothing is known yet."""
        try:
            yield
        except OSError as error:
            self._tell(file.path, "can't be read, it is tried again", error)

    def _inspect(self, file: _File, now: float) -> bytes | None:
        """The beginning of the content, by which the file has a print now; None where it has none, or is done.

        Raises OSError.
        """
        head, marker = self._head(file)
        length = self._print_length(file, head, now)
        if length is None:
            return None
        if not self._known_is_new:
            # Others may have read it by another name.
            self._learn(self._positions.all_of(self.source))
            self._known_is_new = True
        if file.codec is None:
            # Others may have read more of it than was there at our look.
            with contextlib.suppress(OSError):
                file.size = os.stat(file.path).st_size  # noqa: PTH116  of many, with each look
        file.marker = marker
        file.print_ = (length, _digest(head[:length]))
        if marker is not None and marker in self._known:
            file.done = True
            self._bind(file, Reading(marker))
            return None
        return head

    def _is_where_it_was(self, file: _File, head: bytes, *, is_sure: bool) -> bool:
        """By inode and print: the content that was last in this very file. ``is_sure``: more than its print is known.

        Raises OSError.
        """
        name = self._where_it_was(file, head, is_sure=is_sure)
        if name is None:
            return False
        found = _NAME.fullmatch(name.removeprefix(self._prefix))
        assert found is not None
        file.print_ = (int(found[2]), found[3])
        reading = Reading(name)
        reading.go_to(self._known.get(name))
        self._bind(file, reading)
        if file.size < reading.position:
            self._cut(file)
        return True

    def _where_it_was(self, file: _File, head: bytes, *, is_sure: bool) -> str | None:
        if file.codec is not None:
            return None
        for name in sorted(self._by_inode.get(_inode(file), ()), key=_copy_number, reverse=True):
            found = _NAME.fullmatch(name.removeprefix(self._prefix))
            at = self._at(name)
            if found is None or at is None or name in self._bound or self._is_sure(name) is not is_sure:
                continue
            length = int(found[2])
            if (
                length <= len(head)
                and _digest(head[:length]) == found[3]
                and self._may_be_this(file, name, at, head, length, is_whole=False)
            ):
                return name
        return None

    def _is_sure(self, name: str) -> bool:
        """Is more known of a content than its print?"""
        at = self._at(name)
        return at is not None and ((name, at.generation) in self._seconds or (name, at.generation) in self._marks)

    def _name(self, file: _File, head: bytes, now: float, unknown: Sequence[tuple[_File, bytes]]) -> str | None:
        """The partition of a content that is in no other file now, or a new one; None: it has one, or is to wait.

        ``unknown``: all that are looked at now, with their beginnings.
        """
        candidates = self._in_no_file(file, head, now, unknown)
        if candidates is None:
            return None
        sure = [name for name in candidates if self._is_sure(name)]
        if len(sure) == 1:
            return sure[0]
        if len(candidates) > 1:
            # Several that began alike: the one that was read to exactly this end.
            candidates = [name for name in candidates if file.codec is None and self._offset(name) == file.size]
        if len(candidates) == 1:
            return candidates[0]
        own = self._own_name(file)
        alike = self._by_print.get(file.print_, set())
        if file.codec is not None:
            # A compressed file is read on under its own name, if it is the one that had it.
            for name in sorted(alike - self._bound.keys()):
                at = self._at(name)
                if (
                    at is not None
                    and name.partition("~")[0] == own
                    and self._may_be_this(file, name, at, head, file.print_[0])
                ):
                    return name
        if alike:
            self._tell_of_the_same_lines(file, head, alike)
        taken = {_copy_number(name) for name in alike}
        number = next(n for n in itertools.count() if n not in taken)
        return f"{own}~{number}" if number else own

    def _tell_of_the_same_lines(self, file: _File, head: bytes, alike: Iterable[str]) -> None:
        """Two files that are there begin with the same lines, and go on otherwise: the user can tell them apart."""
        length = file.print_[0]
        if self._has_told_of_the_same_lines or length == _PRINT_BYTES:
            return
        for other in [self._bound[name] for name in alike if name in self._bound]:
            with contextlib.suppress(OSError):
                its = self._head(other)[0] if other.is_there else b""
                end = min(len(its), len(head))
                if end > length and its[length:end] != head[length:end]:
                    self._has_told_of_the_same_lines = True
                    self._receiver.report_error(
                        f"{file.path} begins with the same line as {other.path}, as others may: while no more than "
                        "that is read of a file it may be taken for another; set fingerprint_lines to more lines "
                        f"than are the same (now {self._settings.fingerprint_lines})"
                    )
                    return

    def _own_name(self, file: _File) -> str:
        return f"{self._prefix}{_inode(file)}/{file.print_[0]}-{file.print_[1]}"

    def _had_one_alike(self, file: _File, head: bytes) -> bool:
        """Had this very file another content before, that began alike?"""
        own = self._own_name(file)
        names = self._by_print.get(file.print_, ())
        return (
            any(name.partition("~")[0] == own for name in names)
            and self._where_it_was(file, head, is_sure=False) is None
        )

    def _in_no_file(
        self, file: _File, head: bytes, now: float, unknown: Sequence[tuple[_File, bytes]]
    ) -> list[str] | None:
        """Known contents that begin alike, as far as they are in no file; None: it has one, or is to wait."""
        candidates: list[str] = []
        lengths = {length for length, _ in self._by_print if length <= len(head)}
        prints = {(length, _digest(head[:length])) for length in lengths}
        names = {name for one in prints for name in self._by_print.get(one, ())}
        # What is there is asked first: a copy waits, whatever else begins alike and is gone.
        for there in [self._bound[name] for name in sorted(names & self._bound.keys())]:
            if there.is_there and self._is_still(there) and self._waits_for(file, there, head, now):
                return None
        cut = self._cut_here(file, names)
        # Then that of which most is known.
        most = sorted(names, key=self._how_much_is_known, reverse=True)
        sure = [name for name in most if self._how_much_is_known(name)[0]]
        for name in sure:
            if self._goes_on(name, file, head, cut, candidates):
                return None
        if cut is not None and not candidates:
            # It begins with the same line again, and there is no copy.
            if not self._some_was_cut and not any(
                self._goes_on_in(cut, other, its) for other, its in unknown if other is not file
            ):
                self._begin_anew(cut, file)
            return None
        if cut is None and self._was_begun_here(file, head, is_known=bool(candidates)):
            return None
        for name in most[len(sure) :]:
            if self._goes_on(name, file, head, cut, candidates):
                return None
        return candidates

    def _goes_on(self, name: str, file: _File, head: bytes, cut: _File | None, candidates: list[str]) -> bool:
        """Does a content go on in this file? One that is not in memory is a candidate. Raises OSError."""
        live = self._bound.get(name)
        if live is None:
            if self._may_go_on_in(file, name, head):
                candidates.append(name)
            return False
        if live is cut or live.is_there or self._let_go_unclaimed(name, live):
            return False
        if self._goes_on_in(live, file, head):
            self._move(live, file)
            return True
        at = self._known.get(name)
        if at is not None and self._is_sure(name) and self._may_go_on_in(file, name, head):
            # Others have read something else by that name, and what was read of it here is refused.
            self._drop(live)
            self._known[name] = at
            candidates.append(name)
        return False

    def _was_begun_here(self, file: _File, head: bytes, *, is_known: bool) -> bool:
        """Of a content no more than its print was read, in this very file; ``is_known``: others go on like this one."""
        name = self._where_it_was(file, head, is_sure=False)
        return (
            name is not None
            and (name in self._known or not is_known)
            and self._is_where_it_was(file, head, is_sure=False)
        )

    def _cut_here(self, file: _File, names: Iterable[str]) -> _File | None:
        """The content that was in this very file until it was cut, if that began alike."""
        lives = [self._bound[name] for name in names if name in self._bound and self._is_claimed(name)]
        here = [live for live in lives if live.key is None and live.was == file.key and live.codec is None]
        return here[-1] if here and file.codec is None else None

    def _may_go_on_in(self, file: _File, name: str, head: bytes) -> bool:
        """May a known content be the one of this file? Raises OSError."""
        at, found = self._at(name), _NAME.fullmatch(name.removeprefix(self._prefix))
        return (
            at is not None
            and found is not None
            and (file.codec is not None or at.offset <= file.size)
            and self._may_be_this(file, name, at, head, int(found[2]))
        )

    def _let_go_unclaimed(self, name: str, live: _File) -> bool:
        """What is gone and was another's: nothing was read of it here, and others may know it by another name."""
        if self._is_claimed(name):
            return False
        self._drop(live)
        return True

    def _may_be_this(
        self, file: _File, name: str, at: Position, head: bytes, length: int, *, is_whole: bool = True
    ) -> bool:
        """May a content be the known one? What got beyond its print and has no second one was lost, and is over."""
        prints = (name, at.generation)
        second = self._seconds.get(prints)
        return (
            _begins_so(head, second, is_whole=is_whole)
            and not self._is_over(name, at, length)
            and self._goes_so_far(file, at.offset, self._marks.get(prints), is_whole=is_whole)
        )

    def _goes_so_far(self, file: _File, offset: int, mark: Print | None, *, is_whole: bool) -> bool:
        """Has a file this mark, and as much as was read? Raises OSError."""
        length, digest = mark or (0, "")
        if mark is None and (file.codec is None or offset <= _PRINT_BYTES):
            return True
        content = _opened(file)
        try:
            found = b"" if mark is None else content.read(length - _PRINT_BYTES, _PRINT_BYTES)
            if mark is not None and len(found) < _PRINT_BYTES:
                return not is_whole
            return (mark is None or _digest(found) == digest) and (
                file.codec is None or offset <= length or bool(content.read(offset - 1, 1))
            )
        finally:
            content.close()

    def _how_much_is_known(self, name: str) -> tuple[bool, int, str]:
        live = self._bound.get(name)
        if live is not None and live.reading is not None:
            return live.second is not None, live.reading.position, name
        at = self._at(name)
        return (False, 0, name) if at is None else ((name, at.generation) in self._seconds, at.offset, name)

    def _goes_on_in(self, live: _File, file: _File, head: bytes) -> bool:
        """May a content that is in no file any more be the one of this file? It begins alike. Raises OSError."""
        reading = live.reading
        # What got beyond its print and has no second one was lost.
        if reading is None or (live.second is None and live.print_[0] < min(reading.position, _PRINT_BYTES)):
            return False
        if not _begins_so(head, live.second) or (file.codec is None and reading.position > file.size):
            return False
        kept = self._open.get(reading.name)
        if isinstance(kept, LocalFile) and self._is_as_it_was(live, kept, reading.position):
            # It is deleted, and was not cut before: what is behind that which was read of it is to be seen yet.
            seen = kept.read(0, len(head))
            if not head.startswith(seen) or (file.codec is None and not _end_alike(kept, file)):
                return False
        if not live.tail:
            return self._goes_so_far(file, reading.position, None, is_whole=True)
        content = _opened(file)
        try:
            return content.read(reading.position - len(live.tail), len(live.tail)) == live.tail
        finally:
            content.close()

    def _claim(self, file: _File, name: str) -> bool:
        """Be the first to begin a content by this name; False: another has, or one that begins alike.

        So that the others find the content by this name before anything of it is read, whatever inode it has then, and
        whoever of us is taken for dead meanwhile.
        """
        number, inode = _copy_number(name), int(_inode(file), 16)
        claim = f"{self._prefix}=+{number}:{file.print_[0]}-{file.print_[1]}"
        if self._positions.open_partition(self.source, claim, inode).offset != inode:
            return False
        self._claimed.add(name)
        return True

    def _tell_of_what_was_not_compared(self, file: _File, reading: Reading) -> None:
        """A compressed file is taken for what was read before a start, and there is no mark of most of that."""
        length = max(file.marked, file.print_[0])
        if file.codec is not None and reading.position > _MARK_TIMES * length:
            said = f"is taken for what was read of {reading.name}"
            if (file.path, said) not in self._told:
                self._told.add((file.path, said))
                self._receiver.report_error(
                    f"{file.path} {said} before: its first {length} bytes, decompressed, are the same, the others "
                    f"up to {reading.position} are not compared and not read again; if it is another file, put it "
                    "there with another beginning"
                )

    def _is_claimed(self, name: str) -> bool:
        return name in self._claimed or name in self._known

    def _at(self, name: str) -> Position | None:
        """Where a content is read to; at its beginning, where nothing of it is registered yet."""
        return self._known.get(name) or (Position(0, 0) if name in self._claimed else None)

    def _offset(self, name: str) -> int:
        at = self._at(name)
        return -1 if at is None else at.offset

    def _identify_anew_what_is_not_claimed(self) -> None:
        """Another may have given it another name, or another content this one."""
        for name, file in list(self._bound.items()):
            if file.is_there and not file.done and not self._is_claimed(name):
                self._unbind(file)
        self._look_at = 0.0

    def _begin_at_end(self, file: _File, name: str, head: bytes) -> None:
        """It was there before the stream was first read: only what comes is."""
        if file.codec is None:
            at = self._known[name] = self._positions.open_partition(self.source, name, self._last_line_end(file))
            length = min(at.offset, len(head))
            if length <= file.print_[0] < _PRINT_BYTES:
                return
            here = (name, at.generation)
            if file.print_[0] < _PRINT_BYTES:
                second = self._seconds[here] = (length, _digest(head[:length]))
                self._by_second.setdefault(second, []).append(here)
                self._seen_at[here] = self._asked
                self._put_at_once(_second_name(*here, second))
            if at.offset > _PRINT_BYTES:
                content = LocalFile(file.path)
                try:
                    tail = content.read(at.offset - _PRINT_BYTES, _PRINT_BYTES)
                finally:
                    content.close()
                self._marks[here] = (at.offset, _digest(tail))
                self._put_at_once(_second_name(*here, self._marks[here]))
        elif file.marker is not None:
            self._put_at_once(file.marker)
            file.done = True

    def _put_at_once(self, name: str) -> None:
        self._known[name] = self._positions.open_partition(self.source, name, 0)

    def _begin_anew(self, old: _File, file: _File) -> None:
        """The next generation of a content's partition."""
        reading = old.reading
        assert reading is not None
        if old.ours:
            self._lose(old, "what was seen there and not read")
            reading.begin_anew(self.source)
            self._changed.append(reading)
        self._drop(old)
        self._bind(file, reading)
        file.second = None
        file.marked = 0

    def _waits_for(self, file: _File, live: _File, head: bytes, now: float) -> bool:
        """Is this a copy of a file that is there yet, made to take its place?"""
        if file.codec is not None:
            return live.codec is None and _begins_with(live.path, head)
        if live.codec is not None or not _same_overlap(file.path, live.path):
            return False
        if file.held_since is None:
            file.held_since = file.held_from = now
        if file.grown_at > file.held_from:
            file.held_from = now
        return now - file.held_from < _COPY_SECONDS and now - file.held_since < _LONGEST_COPY_SECONDS

    def _is_still(self, file: _File) -> bool:
        """Is a file's content the one that it was? What was cut is an orphan when this returns."""
        if file.codec is not None:
            return True
        assert file.reading is not None
        try:
            content = LocalFile(file.path)
        except FileNotFoundError:
            file.gone_since = file.gone_since or self._clock.monotonic()
            return False
        except OSError:
            return True
        try:
            status = content.stat
            if (status.st_dev, status.st_ino) != file.key:
                # Renamed just now: the next look finds it.
                return True
            if self._is_as_it_was(file, content, file.reading.position):
                return True
        finally:
            content.close()
        self._cut(file)
        return False

    def _head(self, file: _File) -> tuple[bytes, str | None]:
        """The first bytes of the content; and what a compressed file is marked by when it is done."""
        content = LocalFile(file.path)
        try:
            raw = content.read(0, _PRINT_BYTES)
            if file.codec is None:
                return raw, None
            # Its end has a checksum of all of it.
            size = content.stat.st_size
            end = content.read(max(0, size - _PRINT_BYTES), _PRINT_BYTES)
            marker = f"{self._prefix}z{size}-{_digest(raw + end)}"
        finally:
            content.close()
        unpacked = DecompressedFile(lambda: pa.OSFile(file.path), file.codec)
        try:
            return unpacked.read(0, _PRINT_BYTES), marker
        finally:
            unpacked.close()

    def _print_length(self, file: _File, head: bytes, now: float) -> int | None:
        """Of what tells this content apart; None while it is not there."""
        end = 0
        for _ in range(self._settings.fingerprint_lines):
            end = head.find(b"\n", end) + 1
            if not end:
                break
        if end:
            return end
        if len(head) == _PRINT_BYTES:
            return _PRINT_BYTES
        waited = self._settings.complete_after is not None and now - file.grown_at >= self._settings.complete_after
        return len(head) if head and (waited or file.codec is not None) else None

    def _bind(self, file: _File, reading: Reading) -> None:
        file.reading = reading
        file.registered = reading.logged
        file.bound_at = self._asked
        self._take_prints(file, reading)
        self._bound[reading.name] = file
        if not file.done:
            self._by_print.setdefault(file.print_, set()).add(reading.name)
            self._by_inode.setdefault(_inode(file), []).append(reading.name)
        file.ours = self._is_ours(file)

    def _take_prints(self, file: _File, reading: Reading) -> None:
        at = (reading.name, reading.generation)
        file.second = self._seconds.get(at)
        file.marked = max(self._marks.get(at, (0, ""))[0], (file.second or (0, ""))[0])

    def _unbind(self, file: _File) -> None:
        """Have a file identified anew."""
        assert file.reading is not None
        self._open.close(file.reading.name)
        self._decompressed.close(file.reading.name)
        self._bound.pop(file.reading.name, None)
        if not self._is_claimed(file.reading.name):
            self._by_print.get(file.print_, set()).discard(file.reading.name)
        file.reading = None
        file.held_since = None
        file.second = None
        file.marked = 0
        file.tail = b""
        file.waits_at = -1

    def _move(self, live: _File, file: _File) -> None:
        """A content goes on in another file: a copy, or a compressed one."""
        assert live.reading is not None
        self._open.close(live.reading.name)
        self._decompressed.close(live.reading.name)
        if live.key is not None:
            self._files.pop(live.key, None)
        elif live in self._orphans:
            self._orphans.remove(live)
        live.key, live.path, live.codec, live.marker = file.key, file.path, file.codec, file.marker
        live.size, live.mtime_ns, live.grown_at = file.size, file.mtime_ns, file.grown_at
        live.gone_since = live.failed = None
        live.waits_at = -1
        if live.codec is not None:
            live.tail = b""
        # What was too long a line there is one here, and is begun again.
        live.reading.large = None
        assert file.key is not None
        self._files[file.key] = live

    def _cut(self, file: _File) -> None:
        """A file has another content now: the one that it had is in no file, until a copy is found."""
        assert file.key is not None
        now = self._clock.monotonic()
        self._some_was_cut = True
        old = self._files.pop(file.key)
        self._files[file.key] = _File(file.key, file.path, codec_of(file.path), 0, 0, now)
        self._look_at = 0.0
        if old.reading is None:
            return
        self._open.close(old.reading.name)
        self._decompressed.close(old.reading.name)
        old.key, old.was = None, old.key
        old.gone_since = now
        self._orphans.append(old)
        if old.ours and old.codec is None:
            self._receiver.report_error(
                f"{old.path} was truncated, or replaced: it had {old.size} bytes, {old.reading.position} of them are "
                "read; it is read anew from its beginning"
            )

    # -- what is gone ------------------------------------------------------------------------------------------------

    def _give_up_what_is_gone(self, now: float) -> None:
        for file in [*self._files.values(), *self._orphans]:
            if file.gone_since is None:
                continue
            if file.reading is None or not file.ours:
                if file.reading is None and file.codec is None and file.size and file.held_since is None:
                    self._receiver.report_error(
                        f"{file.path} is gone: its {file.size} bytes were seen and not read, for it had not the whole "
                        "lines yet that tell it apart; they are lost",
                    )
                self._drop(file)
            elif now - file.gone_since >= _COPY_SECONDS and not self._has_more(file, now):
                self._lose(file, f"{file.path} is gone: what was seen of it and not read")
                self._drop(file)

    def _lose(self, file: _File, what: str) -> None:
        reading = file.reading
        if reading is None or file.done:
            return
        if file.codec is not None:
            self._receiver.report_error(f"{file.path} is gone, and was not read to its end")
            return
        if file.size <= reading.position:
            return
        self._receiver.report_error(
            f"{what}: bytes {reading.position} up to {file.size}, {file.size - reading.position} of them, are lost"
            f" ({file.path})"
        )
        reading.lose(self.source, file.size)
        self._changed.append(reading)

    def _drop(self, file: _File) -> None:
        """Let an object go; its position stays known."""
        if file.key is not None:
            self._files.pop(file.key, None)
        elif file in self._orphans:
            self._orphans.remove(file)
        reading = file.reading
        if reading is None:
            return
        self._open.close(reading.name)
        self._decompressed.close(reading.name)
        self._bound.pop(reading.name, None)
        if reading.logged >= 0:
            # Others may have read on.
            at = self._known.get(reading.name, Position(0, ORIGIN))
            if (at.generation, at.offset) < (reading.generation, reading.logged):
                self._known[reading.name] = Position(reading.generation, reading.logged)
        elif not self._is_claimed(reading.name):
            self._by_print.get(file.print_, set()).discard(reading.name)

    def _mark_done(self) -> None:
        """What is decompressed and registered to its end is not decompressed again with the next start."""
        for file in self._files.values():
            reading = file.reading
            if not file.done or not file.ours or file.marker is None or reading is None or file.marker in self._known:
                continue
            if reading.position == reading.start or file.registered >= reading.position:
                self._put_at_once(file.marker)

    def _forget(self, now: float) -> None:
        """Have the driver log forget files that were gone for long; not while none is there: all may be away."""
        self._forget_at = now + min(_FORGET_SECONDS, self._settings.forget_after)
        self._learn(self._positions.all_of(self.source))
        there = set(self._bound) | {file.marker for file in self._files.values()} | {f"{self._prefix}{_START}"}
        self._gone = {
            name: self._gone.get(name, now)
            for name in self._known.keys() | self._claimed
            if name not in there
            and _SECOND.fullmatch(name) is None
            and self._sharing.is_ours(name.rpartition("-")[2].partition("~")[0])
        }
        old = [name for name, since in self._gone.items() if now - since >= self._settings.forget_after]
        # A second print is of use for as long as its content is known.
        old += [name for name in self._known if (found := _SECOND.fullmatch(name)) and found[1] not in self._known]
        # So is who began it.
        gone = set(old)
        began = {name: self._name_of(name, at) for name, at in self._known.items()}
        kept = {_number(name) for name in (self._known.keys() | self._claimed) - gone}
        old += self._superseded()
        old = [
            name
            for name in old
            if name in began
            and (began[name] is None or began[name] in gone)
            and not (_BEYOND.fullmatch(name.removeprefix(self._prefix)) and self._known[name].offset in kept)
        ]
        old += [name for name, content in began.items() if content in gone and name not in gone]
        if old and any(file.is_there for file in self._files.values()):
            self._positions.forget(self.source, old)
            self._learn(self._positions.all_of(self.source))

    def _superseded(self) -> list[str]:
        """Marks behind which there are others."""
        found = [(name, one) for name in self._known if (one := _SECOND.fullmatch(name)) and one[1] in self._known]
        newest: dict[tuple[str, str, bool], tuple[int, str]] = {}
        for name, one in found:
            of_these = (one[1], one[2], int(one[3]) > _PRINT_BYTES)
            newest[of_these] = max(newest.get(of_these, (0, "")), (int(one[3]), name))
        kept = {name for _, name in newest.values()}
        return [
            name
            for name, one in found
            if name not in kept and self._sharing.is_ours(one[1].rpartition("-")[2].partition("~")[0])
        ]

    def _mark_what_stands_still(self, now: float) -> None:
        """So that it is known by all that was read of it, when it is found elsewhere after a start."""
        still = [
            file
            for file in self._files.values()
            if file.ours
            and file.codec is None
            and file.second is not None
            and file.tail
            and file.is_there
            and now - file.grown_at > _HOT_SECONDS
            and (reading := file.reading) is not None
            and file.marked < reading.position == file.registered
        ]
        for file in still[:_MOST_MARKED]:
            reading = file.reading
            assert reading is not None
            with contextlib.suppress(OSError):
                content = LocalFile(file.path)
                try:
                    if (content.stat.st_dev, content.stat.st_ino) != file.key or not self._is_as_it_was(
                        file, content, reading.position
                    ):
                        continue
                    marker = self._mark(file, reading, content.read)
                finally:
                    content.close()
                self._put_at_once(marker)

    # -- reading -----------------------------------------------------------------------------------------------------

    def _has_more(self, file: _File, now: float) -> bool:
        reading = file.reading
        if reading is None or not file.ours or file.done or file.failed == (file.size, file.mtime_ns):
            return False
        if file.codec is not None:
            return file.gone_since is None
        if file.size <= reading.position:
            return False
        if not file.is_there:
            return file.key is not None and self._open.get(reading.name) is not None
        return file.waits_at != file.size or self._is_complete(file, now)

    def _is_complete(self, file: _File, now: float) -> bool:
        after = self._settings.complete_after
        return after is not None and now - file.grown_at >= after

    def _read_plain(self, file: _File, reading: Reading, limits: Limits) -> Part | None:
        content = self._content_of(file, reading)
        if content is None:
            return None
        at, large = reading.position, reading.large
        kept = None if large is None else (large.next, large.part)
        status = content.stat
        deleted = file.gone_since is not None
        part = self._lines.read(
            reading, content, limits, path=file.path, modified_ms=status.st_mtime_ns // 10**6, ends=deleted
        )
        if part.waits and reading.large is None and self._is_complete(file, self._clock.monotonic()):
            data = content.read(reading.position, max(limits.nbytes, self._settings.max_record_bytes + 2))
            if b"\n" not in data:
                part = self._lines.last(reading, data, path=file.path, modified_ms=status.st_mtime_ns // 10**6)
        # After the data was read: what was read of a file that was cut meanwhile is dropped.
        if not self._is_as_it_was(file, content, at):
            reading.position, reading.large = at, large
            if large is not None and kept is not None:
                large.next, large.part = kept
            if file.is_there:
                self._cut(file)
            return None
        file.waits_at = file.size if part.waits else -1
        if reading.position != at:
            begin = max(0, reading.position - _TAIL_BYTES)
            file.tail = content.read(begin, reading.position - begin)
            if not self._print_again(file, reading, content.read):
                return None
            # What is shown to be there may be more than what was seen by the last look.
            file.size = max(file.size, reading.position)
        return part if part.batch is not None or part.letters or reading.position != at else None

    def _content_of(self, file: _File, reading: Reading) -> LocalFile | None:
        content = self._open.get(reading.name)
        if content is None:
            if not file.is_there:
                return None
            content = LocalFile(file.path)
            status = content.stat
            if (status.st_dev, status.st_ino) != file.key:
                # Renamed since the last look.
                content.close()
                self._look_at = 0.0
                return None
            self._open.put(reading.name, content)
        assert isinstance(content, LocalFile)
        return content

    def _is_as_it_was(self, file: _File, content: LocalFile, at: int) -> bool:
        """Does it begin as it did, and does what was read last still end where it did?"""
        length, digest = file.second or file.print_
        before = max(0, at - len(file.tail))
        return (
            content.stat.st_size >= at
            and _digest(content.read(0, length)) == digest
            and (not file.tail or content.read(before, at - before) == file.tail)
        )

    def _unpack(self, file: _File, reading: Reading, limits: Limits) -> Part | None:
        codec = file.codec
        assert codec is not None
        content = self._decompressed.get(reading.name)
        if content is None:
            path = file.path
            content = DecompressedFile(lambda: pa.OSFile(path), codec)
            self._decompressed.put(reading.name, content)
        part = self._lines.read(reading, content, limits, path=file.path, modified_ms=file.mtime_ns // 10**6, ends=True)
        if part.batch is None and not part.letters and not part.more:
            file.done = True
            self._decompressed.close(reading.name)
            return None
        # Its beginning is of a stream of its own: this one does not go back.
        there = content
        if not self._print_again(
            file, reading, lambda at, size: there.read(at, size) if at else self._head(file)[0][:size]
        ):
            return None
        return part

    def _print_again(self, file: _File, reading: Reading, read: Callable[[int, int], bytes]) -> bool:
        """The second print, with the first block that has more of the content than its print; and marks.

        False: it may be another's content by now, and is to be looked at again.
        """
        at, length = reading.position, file.print_[0]
        if at > length and file.second is None and length < _PRINT_BYTES:
            head = read(0, _PRINT_BYTES)
            if not self._go_beyond(file, reading, head):
                return False
            file.second = (min(at, _PRINT_BYTES), _digest(head[:at]))
            self._put(reading, _second_name(reading.name, reading.generation, file.second))
            file.marked = at if at <= _PRINT_BYTES else 0
        if at > length and at >= _MARK_TIMES * file.marked:
            self._put(reading, self._mark(file, reading, read))
        return True

    def _put(self, reading: Reading, name: str, value: int = 0) -> None:
        """Have a name of what is known go in with the next block."""
        if name not in self._known:
            reading.before.append(OffsetLink(self.source, name, 0, ORIGIN, value, LinkKind.ORIGIN))

    def _mark(self, file: _File, reading: Reading, read: Callable[[int, int], bytes]) -> str:
        """The name of a mark of what is read."""
        begin = max(0, reading.position - _PRINT_BYTES)
        file.marked = reading.position
        mark = (reading.position, _digest(read(begin, reading.position - begin)))
        if begin == 0:
            file.second = mark
        return _second_name(reading.name, reading.generation, mark)

    def _go_beyond(self, file: _File, reading: Reading, head: bytes) -> bool:
        """Be the first to read what is behind the print, by this name; False: it is another name's content."""
        end = head.find(b"\n", file.print_[0]) + 1 or len(head)
        like = f"{end}-{_digest(head[:end])}"
        number = self._beyond.get(like, 0)
        if number and self._was_read_by_another_name(file, reading, head):
            return False
        self._beyond[like] = number + 1
        self._put(reading, f"{self._prefix}==+{number}:{like}", _number(reading.name))
        return True

    def _was_read_by_another_name(self, file: _File, reading: Reading, head: bytes) -> bool:
        """Has another gone on with this very content by another name, since it has this one? Then it has that one.

        Two had it in different files, as when it was copied and cut: and more contents begin alike, so that it was no
        longer known which it is. What is in another file that is there is another content.
        """
        lengths = {length for length, _ in self._by_second if length <= len(head)}
        alike = [(length, _digest(head[:length])) for length in sorted(lengths)]
        for name, generation in [at for second in alike for at in self._by_second.get(second, ())]:
            at = self._known.get(name)
            found = _NAME.fullmatch(name.removeprefix(self._prefix))
            if at is None or at.generation != generation or name == reading.name or found is None:
                continue
            if not self._may_go_on_in(file, name, head):
                continue
            live = self._bound.get(name)
            if live is not None and live.is_there and self._is_still(live):
                continue
            if self._seen_at[name, generation] <= file.bound_at:
                self._receiver.report_error(
                    f"{file.path} begins as {name} did, {at.offset} bytes of which were read, and which is in no file "
                    "now: it is read as another file, and what is the same comes twice if it is that one; set "
                    "fingerprint_lines to more lines than are the same in all files"
                )
                continue
            if live is not None:
                self._drop(live)
            self._unbind(file)
            file.print_ = (int(found[2]), found[3])
            is_it = Reading(name)
            is_it.go_to(at)
            self._bind(file, is_it)
            self._end(reading, file.print_[0] + 1, is_it)
            return True
        return False

    def _end(self, reading: Reading, beyond: int, other: Reading) -> None:
        """A name that a content had beside its own is over; that goes in with that one's next block."""
        at = self._known.get(reading.name)
        generation = 0 if at is None else at.generation + 1
        other.before.append(OffsetLink(self.source, reading.name, generation, ORIGIN, beyond, LinkKind.ORIGIN))

    def _last_line_end(self, file: _File) -> int:
        content = LocalFile(file.path)
        try:
            end = content.stat.st_size
            while end > 0:
                begin = max(0, end - _OVERLAP_BYTES)
                found = content.read(begin, end - begin).rfind(b"\n")
                if found >= 0:
                    return begin + found + 1
                end = begin
            return 0
        finally:
            content.close()

    # -- small things ------------------------------------------------------------------------------------------------

    def _learn(self, known: Mapping[str, Position]) -> None:
        self._known = {name: at for name, at in known.items() if name.startswith(self._prefix)}
        self._by_print = {}
        self._by_inode = {}
        self._seconds = {}
        self._marks = {}
        self._beyond = {}
        self._claimed = {name for claim, at in self._known.items() if (name := self._name_of(claim, at)) is not None}
        for name in self._claimed | self._known.keys():
            beyond = _BEYOND.fullmatch(name.removeprefix(self._prefix))
            if beyond is not None:
                self._beyond[beyond[2]] = max(self._beyond.get(beyond[2], 0), int(beyond[1]) + 1)
                continue
            second = _SECOND.fullmatch(name)
            if second is not None:
                found, at = (int(second[3]), second[4]), (second[1], int(second[2]))
                of_these = self._seconds if found[0] <= _PRINT_BYTES else self._marks
                of_these[at] = max(found, of_these.get(at, found))
                continue
            content = _NAME.fullmatch(name.removeprefix(self._prefix))
            if content is not None:
                self._by_print.setdefault((int(content[2]), content[3]), set()).add(name)
                self._by_inode.setdefault(content[1], []).append(name)
        self._asked += 1
        self._seen_at = {at: self._seen_at.get(at, self._asked) for at in self._seconds}
        self._by_second = {}
        for at, print_ in self._seconds.items():
            self._by_second.setdefault(print_, []).append(at)
        for name, file in self._bound.items():
            if not file.done:
                self._by_print.setdefault(file.print_, set()).add(name)
        self._leave_what_others_know_better()

    def _leave_what_others_know_better(self) -> None:
        """Another has read on by that name, or begun it anew: is it this content yet?"""
        for name, file in list(self._bound.items()):
            reading, at = file.reading, self._known.get(name)
            if at is None or reading is None or at.generation < reading.generation:
                continue
            second = self._seconds.get((name, at.generation))
            if file.done:
                if at.generation > reading.generation and file.marker in self._known and name != file.marker:
                    # That name is another content's by now.
                    self._unbind(file)
                    self._bind(file, Reading(file.marker))
            elif at.generation == reading.generation and (
                second == file.second if second is not None else not self._is_over(name, at, file.print_[0])
            ):
                continue
            elif file.is_there:
                self._compare_with_what_is_known(file, reading, at, second)
            elif self._is_refused(file, reading, at, second):
                self._drop(file)

    def _compare_with_what_is_known(self, file: _File, reading: Reading, at: Position, second: Print | None) -> None:
        try:
            is_it = at.generation == reading.generation and _begins_so(self._head(file)[0], second)
        except OSError:
            is_it = False
        if second is None or not is_it:
            self._unbind(file)
            self._look_at = 0.0
        elif file.second is None or file.second[0] < second[0]:
            self._take_prints(file, reading)

    def _is_refused(self, file: _File, reading: Reading, at: Position, second: Print | None) -> bool:
        """Will what was read here of a content that is in no file be refused, for others have read on?"""
        ours = file.second
        return (at.generation, at.offset) > (reading.generation, reading.logged) or (
            second is not None and (ours is None or (ours[0] == second[0] and ours != second))
        )

    def _is_over(self, name: str, at: Position, length: int) -> bool:
        """What got beyond its print and has no second one: it was lost, or had another name."""
        return (name, at.generation) not in self._seconds and length < min(at.offset, _PRINT_BYTES)

    def _name_of(self, claim: str, at: Position) -> str | None:
        found = _CLAIM.fullmatch(claim.removeprefix(self._prefix))
        if found is None:
            return None
        number = int(found[1])
        return f"{self._prefix}{at.offset:x}/{found[2]}-{found[3]}" + (f"~{number}" if number else "")

    def _is_ours(self, file: _File) -> bool:
        return self._sharing.is_ours(file.print_[1])

    def _tell(self, path: str, what: str, error: OSError) -> None:
        """Once of each file and reason."""
        told = (path, str(error))
        if told not in self._told:
            self._told.add(told)
            self._receiver.report_error(f"{path} {what}", error)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()) >> 1


def _opened(file: _File) -> LocalFile | DecompressedFile:
    """What is in a file. Raises OSError."""
    path = file.path
    return LocalFile(path) if file.codec is None else DecompressedFile(lambda: pa.OSFile(path), file.codec)


def _second_name(name: str, generation: int, second: Print) -> str:
    return f"{name}+{generation}:{second[0]}-{second[1]}"


def _begins_so(head: bytes, second: Print | None, *, is_whole: bool = True) -> bool:
    """Has a content this second print, as far as there is one? ``is_whole``: it is to be as long as that."""
    if second is None:
        return True
    length, digest = second
    return _digest(head[:length]) == digest if len(head) >= length else not is_whole


def _inode(file: _File) -> str:
    return f"{0 if file.key is None else file.key[1] & _INODE_BITS:x}"


def _copy_number(name: str) -> int:
    return int(name.partition("~")[2] or 0)


def _age(file: _File) -> tuple[int, str]:
    return file.mtime_ns, file.path


def _base_of(pattern: str) -> str:
    """The directory before the first wild card."""
    parts = pattern.split("/")
    wild = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return "/".join(parts[:wild]) or "/"


def _begins_with(path: str, head: bytes) -> bool:
    """Has a file this beginning? True where that can't be seen: who asks waits."""
    try:
        content = LocalFile(path)
    except OSError:
        return True
    try:
        return content.read(0, len(head)) == head
    except OSError:
        return True
    finally:
        content.close()


def _end_alike(deleted: LocalFile, file: _File) -> bool:
    """Has a file what is in one that is deleted, at the end of what the shorter has? Raises OSError."""
    content = LocalFile(file.path)
    try:
        end = min(deleted.stat.st_size, content.stat.st_size)
        begin = max(0, end - _OVERLAP_BYTES)
        return deleted.read(begin, end - begin) == content.read(begin, end - begin)
    finally:
        content.close()


def _same_overlap(one: str, other: str) -> bool:
    """Do two files have the same bytes at the end of what the shorter has? False where that can't be seen."""
    try:
        first = LocalFile(one)
    except OSError:
        return False
    try:
        second = LocalFile(other)
    except OSError:
        first.close()
        return False
    try:
        end = min(first.stat.st_size, second.stat.st_size)
        begin = max(0, end - _OVERLAP_BYTES)
        return first.read(begin, end - begin) == second.read(begin, end - begin)
    except OSError:
        return False
    finally:
        first.close()
        second.close()
