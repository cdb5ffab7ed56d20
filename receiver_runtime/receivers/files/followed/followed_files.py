"""Which files a pattern matches, which of them is which, and what became of those that are gone (``FollowedFiles``).

A file is known by its *print*, its first line or lines, and its inode: not by its name. So

- renamed, it is the same file, read on to its end;
- copied and cut (copytruncate), or compressed, its *content* is what goes on: another file with the same beginning,
  when the first one is there no more or has another beginning now, is read from where that one was;
- cut, its content is over: what was seen there and not read is lost, unless a copy of it appears;
- an inode that is used again has another print.

While a copy and what it was made of are both there, the copy waits. Nothing here is remembered anywhere but in the
driver log, as ``contents`` has it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import itertools
import os
import stat
from typing import TYPE_CHECKING

from receiver_runtime.clock import SystemClock
from receiver_runtime.receivers.files.content import LocalFile, OpenContents, codec_of
from receiver_runtime.receivers.files.followed.contents import (
    PRINT_BYTES,
    FollowedContents,
    begins_so,
    copy_number,
    digest,
    number_of,
    print_name,
)
from receiver_runtime.receivers.files.followed.followed_file import (
    OVERLAP_BYTES,
    FollowedFile,
    age,
    begins_with,
    end_alike,
    inode_of,
    opened,
    same_overlap,
)
from receiver_runtime.receivers.files.records import LineReader, Part, Reading
from tracker_store.blocks import ORIGIN, OffsetLink, Position
from tracker_store.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from receiver_runtime.clock import Clock
    from receiver_runtime.receiver import Receiver
    from receiver_runtime.receivers.files.followed.contents import Print
    from receiver_runtime.receivers.files.followed.followed_file import Key
    from receiver_runtime.receivers.files.records import Limits
    from receiver_runtime.receivers.files.sharing import Sharing
    from receiver_runtime.sources.files import FollowedFiles

_TAIL_BYTES = 64
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


class FollowedCatalog:
    """See the module, and ``files.reader.Catalog``."""

    source = "followed_files"

    def __init__(
        self, source: FollowedFiles, receiver: Receiver, sharing: Sharing, host: str, *, clock: Clock | None = None
    ) -> None:
        self._settings = source
        self._clock = clock or SystemClock()
        self._receiver = receiver
        self._sharing = sharing
        self._prefix = "" if source.shared else f"{host}/"
        self._base = _base_of(source.path)
        self._lines = LineReader(encoding=source.encoding, max_record_bytes=source.max_record_bytes)
        self._open = OpenContents(_MOST_OPEN)
        self._decompressed = OpenContents(_MOST_OPEN_COMPRESSED)
        self._files: dict[Key, FollowedFile] = {}
        # Contents that are in no file now.
        self._orphans: list[FollowedFile] = []
        self._bound: dict[str, FollowedFile] = {}
        self._log = FollowedContents(self.source, self._prefix, receiver.supervisor.block_path.positions)
        self._changed: list[Reading] = []
        self._look_at = 0.0
        self._known_is_new = False
        self._told: set[tuple[str, str]] = set()
        self._has_told_of_the_same_lines = False
        # While files are given their names: what came there is not among them.
        self._some_was_cut = False
        self._is_away = False
        self._forget_at = self._clock.monotonic() + min(_FORGET_SECONDS, source.forget_after)

    # -- the reader's side -------------------------------------------------------------------------------------------

    def reload(self, known: Mapping[str, Position]) -> None:
        """See ``Catalog``."""
        self._log.learn(known)
        self._compare_with_what_others_know()
        self._identify_anew_what_is_not_claimed()
        self._changed = []
        for file in [*self._files.values(), *self._orphans]:
            reading = file.reading
            if reading is None:
                continue
            file.ours = self._is_ours(file)
            reading.go_to(self._log.known.get(reading.name))
            self._take_prints(file, reading)
            file.tail = b""
            file.waits_at = -1
            file.registered = reading.logged
            file.done = file.marker in self._log.known
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
        first = self._settings.start == "latest" and self._log.start_name not in self._log.known
        if self._identify(now, at_end=first) and first:
            self._log.put_at_once(self._log.start_name)
        self._give_up_what_is_gone(now)
        self._mark_done()
        self._mark_what_stands_still(now)
        if now >= self._forget_at:
            self._forget(now)

    def ready(self) -> Iterable[Reading]:
        """See ``Catalog``."""
        now = self._clock.monotonic()
        files = [file for file in [*self._files.values(), *self._orphans] if self._has_more(file, now)]
        return [file.reading for file in sorted(files, key=age) if file.reading is not None]

    def read(self, reading: Reading, limits: Limits) -> Part | None:
        """See ``Catalog``."""
        file = self._bound.get(reading.name)
        if file is None or not file.ours:
            return None
        if not self._log.is_claimed(reading.name):
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
                self._files[key] = FollowedFile(key, path, codec_of(path), status.st_size, status.st_mtime_ns, now)
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

    def _check(self, file: FollowedFile) -> None:
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

    def _see(self, file: FollowedFile, status: os.stat_result, now: float) -> None:
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
        unknown: list[tuple[FollowedFile, bytes]] = []
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
            if not self._log.is_claimed(name) and (at_end or self._is_ours(file)):
                if not self._log.claim(name, int(inode_of(file), 16), file.print_):
                    # Another began this content, or one that begins alike, since we learned what is known.
                    self._ask_again()
                    self._identify_anew_what_is_not_claimed()
                    return False
                if at_end:
                    self._begin_at_end(file, name, head)
            reading = Reading(name)
            reading.go_to(self._log.known.get(name))
            self._bind(file, reading)
            self._tell_of_what_was_not_compared(file, reading)
        return True

    def _look_into(self, file: FollowedFile, now: float) -> list[tuple[FollowedFile, bytes]]:
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
    def _tried_again(self, file: FollowedFile) -> Iterator[None]:
        """Of what can't be compared nothing is known yet."""
        try:
            yield
        except OSError as error:
            self._tell(file.path, "can't be read, it is tried again", error)

    def _inspect(self, file: FollowedFile, now: float) -> bytes | None:
        """The beginning of the content, by which the file has a print now; None where it has none, or is done.

        Raises OSError.
        """
        head, marker = self._head(file)
        length = self._print_length(file, head, now)
        if length is None:
            return None
        if not self._known_is_new:
            # Others may have read it by another name.
            self._ask_again()
            self._known_is_new = True
        if file.codec is None:
            # Others may have read more of it than was there at our look.
            with contextlib.suppress(OSError):
                file.size = os.stat(file.path).st_size  # noqa: PTH116  of many, with each look
        file.marker = marker
        file.print_ = (length, digest(head[:length]))
        if marker is not None and marker in self._log.known:
            file.done = True
            self._bind(file, Reading(marker))
            return None
        return head

    def _is_where_it_was(self, file: FollowedFile, head: bytes, *, is_sure: bool) -> bool:
        """By inode and print: the content that was last in this very file. ``is_sure``: more than its print is known.

        Raises OSError.
        """
        name = self._where_it_was(file, head, is_sure=is_sure)
        if name is None:
            return False
        found = self._log.print_of(name)
        assert found is not None
        file.print_ = found
        reading = Reading(name)
        reading.go_to(self._log.known.get(name))
        self._bind(file, reading)
        if file.size < reading.position:
            self._cut(file)
        return True

    def _where_it_was(self, file: FollowedFile, head: bytes, *, is_sure: bool) -> str | None:
        if file.codec is not None:
            return None
        for name in sorted(self._log.by_inode.get(inode_of(file), ()), key=copy_number, reverse=True):
            found = self._log.print_of(name)
            at = self._log.at(name)
            if found is None or at is None or name in self._bound or self._log.is_sure(name) is not is_sure:
                continue
            length, its = found
            if (
                length <= len(head)
                and digest(head[:length]) == its
                and self._may_be_this(file, name, at, head, length, is_whole=False)
            ):
                return name
        return None

    def _name(
        self, file: FollowedFile, head: bytes, now: float, unknown: Sequence[tuple[FollowedFile, bytes]]
    ) -> str | None:
        """The partition of a content that is in no other file now, or a new one; None: it has one, or is to wait.

        ``unknown``: all that are looked at now, with their beginnings.
        """
        candidates = self._in_no_file(file, head, now, unknown)
        if candidates is None:
            return None
        sure = [name for name in candidates if self._log.is_sure(name)]
        if len(sure) == 1:
            return sure[0]
        if len(candidates) > 1:
            # Several that began alike: the one that was read to exactly this end.
            candidates = [name for name in candidates if file.codec is None and self._log.offset(name) == file.size]
        if len(candidates) == 1:
            return candidates[0]
        own = self._log.own_name(inode_of(file), file.print_)
        alike = self._log.by_print.get(file.print_, set())
        if file.codec is not None:
            # A compressed file is read on under its own name, if it is the one that had it.
            for name in sorted(alike - self._bound.keys()):
                at = self._log.at(name)
                if (
                    at is not None
                    and name.partition("~")[0] == own
                    and self._may_be_this(file, name, at, head, file.print_[0])
                ):
                    return name
        if alike:
            self._tell_of_the_same_lines(file, head, alike)
        taken = {copy_number(name) for name in alike}
        number = next(n for n in itertools.count() if n not in taken)
        return f"{own}~{number}" if number else own

    def _tell_of_the_same_lines(self, file: FollowedFile, head: bytes, alike: Iterable[str]) -> None:
        """Two files that are there begin with the same lines, and go on otherwise: the user can tell them apart."""
        length = file.print_[0]
        if self._has_told_of_the_same_lines or length == PRINT_BYTES:
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

    def _had_one_alike(self, file: FollowedFile, head: bytes) -> bool:
        """Had this very file another content before, that began alike?"""
        own = self._log.own_name(inode_of(file), file.print_)
        names = self._log.by_print.get(file.print_, ())
        return (
            any(name.partition("~")[0] == own for name in names)
            and self._where_it_was(file, head, is_sure=False) is None
        )

    def _in_no_file(
        self, file: FollowedFile, head: bytes, now: float, unknown: Sequence[tuple[FollowedFile, bytes]]
    ) -> list[str] | None:
        """Known contents that begin alike, as far as they are in no file; None: it has one, or is to wait."""
        candidates: list[str] = []
        lengths = {length for length, _ in self._log.by_print if length <= len(head)}
        prints = {(length, digest(head[:length])) for length in lengths}
        names = {name for one in prints for name in self._log.by_print.get(one, ())}
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

    def _goes_on(
        self, name: str, file: FollowedFile, head: bytes, cut: FollowedFile | None, candidates: list[str]
    ) -> bool:
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
        at = self._log.known.get(name)
        if at is not None and self._log.is_sure(name) and self._may_go_on_in(file, name, head):
            # Others have read something else by that name, and what was read of it here is refused.
            self._drop(live)
            self._log.known[name] = at
            candidates.append(name)
        return False

    def _was_begun_here(self, file: FollowedFile, head: bytes, *, is_known: bool) -> bool:
        """Of a content no more than its print was read, in this very file; ``is_known``: others go on like this one."""
        name = self._where_it_was(file, head, is_sure=False)
        return (
            name is not None
            and (name in self._log.known or not is_known)
            and self._is_where_it_was(file, head, is_sure=False)
        )

    def _cut_here(self, file: FollowedFile, names: Iterable[str]) -> FollowedFile | None:
        """The content that was in this very file until it was cut, if that began alike."""
        lives = [self._bound[name] for name in names if name in self._bound and self._log.is_claimed(name)]
        here = [live for live in lives if live.key is None and live.was == file.key and live.codec is None]
        return here[-1] if here and file.codec is None else None

    def _may_go_on_in(self, file: FollowedFile, name: str, head: bytes) -> bool:
        """May a known content be the one of this file? Raises OSError."""
        at, found = self._log.at(name), self._log.print_of(name)
        return (
            at is not None
            and found is not None
            and (file.codec is not None or at.offset <= file.size)
            and self._may_be_this(file, name, at, head, found[0])
        )

    def _let_go_unclaimed(self, name: str, live: FollowedFile) -> bool:
        """What is gone and was another's: nothing was read of it here, and others may know it by another name."""
        if self._log.is_claimed(name):
            return False
        self._drop(live)
        return True

    def _may_be_this(
        self, file: FollowedFile, name: str, at: Position, head: bytes, length: int, *, is_whole: bool = True
    ) -> bool:
        """May a content be the known one? What got beyond its print and has no second one was lost, and is over."""
        prints = (name, at.generation)
        second = self._log.seconds.get(prints)
        return (
            begins_so(head, second, is_whole=is_whole)
            and not self._log.is_over(name, at, length)
            and self._goes_so_far(file, at.offset, self._log.marks.get(prints), is_whole=is_whole)
        )

    def _goes_so_far(self, file: FollowedFile, offset: int, mark: Print | None, *, is_whole: bool) -> bool:
        """Has a file this mark, and as much as was read? Raises OSError."""
        length, its = mark or (0, "")
        if mark is None and (file.codec is None or offset <= PRINT_BYTES):
            return True
        with contextlib.closing(opened(file)) as content:
            found = b"" if mark is None else content.read(length - PRINT_BYTES, PRINT_BYTES)
            if mark is not None and len(found) < PRINT_BYTES:
                return not is_whole
            return (mark is None or digest(found) == its) and (
                file.codec is None or offset <= length or bool(content.read(offset - 1, 1))
            )

    def _how_much_is_known(self, name: str) -> tuple[bool, int, str]:
        live = self._bound.get(name)
        if live is not None and live.reading is not None:
            return live.second is not None, live.reading.position, name
        at = self._log.at(name)
        return (False, 0, name) if at is None else ((name, at.generation) in self._log.seconds, at.offset, name)

    def _goes_on_in(self, live: FollowedFile, file: FollowedFile, head: bytes) -> bool:
        """May a content that is in no file any more be the one of this file? It begins alike. Raises OSError."""
        reading = live.reading
        # What got beyond its print and has no second one was lost.
        if reading is None or (live.second is None and live.print_[0] < min(reading.position, PRINT_BYTES)):
            return False
        if not begins_so(head, live.second) or (file.codec is None and reading.position > file.size):
            return False
        kept = self._open.get(reading.name)
        if isinstance(kept, LocalFile) and self._is_as_it_was(live, kept, reading.position):
            # It is deleted, and was not cut before: what is behind that which was read of it is to be seen yet.
            seen = kept.read(0, len(head))
            if not head.startswith(seen) or (file.codec is None and not end_alike(kept, file)):
                return False
        if not live.tail:
            return self._goes_so_far(file, reading.position, None, is_whole=True)
        with contextlib.closing(opened(file)) as content:
            return content.read(reading.position - len(live.tail), len(live.tail)) == live.tail

    def _tell_of_what_was_not_compared(self, file: FollowedFile, reading: Reading) -> None:
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

    def _identify_anew_what_is_not_claimed(self) -> None:
        """Another may have given it another name, or another content this one."""
        for name, file in list(self._bound.items()):
            if file.is_there and not file.done and not self._log.is_claimed(name):
                self._unbind(file)
        self._look_at = 0.0

    def _begin_at_end(self, file: FollowedFile, name: str, head: bytes) -> None:
        """It was there before the stream was first read: only what comes is."""
        if file.codec is None:
            at = self._log.begin_at(name, self._last_line_end(file))
            length = min(at.offset, len(head))
            if length <= file.print_[0] < PRINT_BYTES:
                return
            here = (name, at.generation)
            if file.print_[0] < PRINT_BYTES:
                self._log.put_second(here, (length, digest(head[:length])))
            if at.offset > PRINT_BYTES:
                with contextlib.closing(LocalFile(file.path)) as content:
                    tail = content.read(at.offset - PRINT_BYTES, PRINT_BYTES)
                self._log.put_mark(here, (at.offset, digest(tail)))
        elif file.marker is not None:
            self._log.put_at_once(file.marker)
            file.done = True

    def _begin_anew(self, old: FollowedFile, file: FollowedFile) -> None:
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

    def _waits_for(self, file: FollowedFile, live: FollowedFile, head: bytes, now: float) -> bool:
        """Is this a copy of a file that is there yet, made to take its place?"""
        if file.codec is not None:
            return live.codec is None and begins_with(live.path, head)
        if live.codec is not None or not same_overlap(file.path, live.path):
            return False
        if file.held_since is None:
            file.held_since = file.held_from = now
        if file.grown_at > file.held_from:
            file.held_from = now
        return now - file.held_from < _COPY_SECONDS and now - file.held_since < _LONGEST_COPY_SECONDS

    def _is_still(self, file: FollowedFile) -> bool:
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

    def _head(self, file: FollowedFile) -> tuple[bytes, str | None]:
        """The first bytes of the content; and what a compressed file is marked by when it is done."""
        with contextlib.closing(LocalFile(file.path)) as content:
            raw = content.read(0, PRINT_BYTES)
            if file.codec is None:
                return raw, None
            # Its end has a checksum of all of it.
            size = content.stat.st_size
            end = content.read(max(0, size - PRINT_BYTES), PRINT_BYTES)
            marker = f"{self._prefix}z{size}-{digest(raw + end)}"
        with contextlib.closing(opened(file)) as unpacked:
            return unpacked.read(0, PRINT_BYTES), marker

    def _print_length(self, file: FollowedFile, head: bytes, now: float) -> int | None:
        """Of what tells this content apart; None while it is not there."""
        end = 0
        for _ in range(self._settings.fingerprint_lines):
            end = head.find(b"\n", end) + 1
            if not end:
                break
        if end:
            return end
        if len(head) == PRINT_BYTES:
            return PRINT_BYTES
        waited = self._settings.complete_after is not None and now - file.grown_at >= self._settings.complete_after
        return len(head) if head and (waited or file.codec is not None) else None

    def _bind(self, file: FollowedFile, reading: Reading) -> None:
        file.reading = reading
        file.registered = reading.logged
        file.bound_at = self._log.asked
        self._take_prints(file, reading)
        self._bound[reading.name] = file
        if not file.done:
            self._log.by_print.setdefault(file.print_, set()).add(reading.name)
            self._log.by_inode.setdefault(inode_of(file), []).append(reading.name)
        file.ours = self._is_ours(file)

    def _take_prints(self, file: FollowedFile, reading: Reading) -> None:
        at = (reading.name, reading.generation)
        file.second = self._log.seconds.get(at)
        file.marked = max(self._log.marks.get(at, (0, ""))[0], (file.second or (0, ""))[0])

    def _unbind(self, file: FollowedFile) -> None:
        """Have a file identified anew."""
        assert file.reading is not None
        self._open.close(file.reading.name)
        self._decompressed.close(file.reading.name)
        self._bound.pop(file.reading.name, None)
        if not self._log.is_claimed(file.reading.name):
            self._log.by_print.get(file.print_, set()).discard(file.reading.name)
        file.reading = None
        file.held_since = None
        file.second = None
        file.marked = 0
        file.tail = b""
        file.waits_at = -1

    def _move(self, live: FollowedFile, file: FollowedFile) -> None:
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

    def _cut(self, file: FollowedFile) -> None:
        """A file has another content now: the one that it had is in no file, until a copy is found."""
        assert file.key is not None
        now = self._clock.monotonic()
        self._some_was_cut = True
        old = self._files.pop(file.key)
        self._files[file.key] = FollowedFile(file.key, file.path, codec_of(file.path), 0, 0, now)
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

    def _lose(self, file: FollowedFile, what: str) -> None:
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

    def _drop(self, file: FollowedFile) -> None:
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
            at = self._log.known.get(reading.name, Position(0, ORIGIN))
            if (at.generation, at.offset) < (reading.generation, reading.logged):
                self._log.known[reading.name] = Position(reading.generation, reading.logged)
        elif not self._log.is_claimed(reading.name):
            self._log.by_print.get(file.print_, set()).discard(reading.name)

    def _mark_done(self) -> None:
        """What is decompressed and registered to its end is not decompressed again with the next start."""
        for file in self._files.values():
            reading = file.reading
            if (
                not file.done
                or not file.ours
                or file.marker is None
                or reading is None
                or file.marker in self._log.known
            ):
                continue
            if reading.position == reading.start or file.registered >= reading.position:
                self._log.put_at_once(file.marker)

    def _forget(self, now: float) -> None:
        """Have the driver log forget files that were gone for long; not while none is there: all may be away."""
        after = self._settings.forget_after
        self._forget_at = now + min(_FORGET_SECONDS, after)
        self._ask_again()
        there = [*self._bound, *(file.marker for file in self._files.values())]
        over = self._log.over(there, now, after=after, is_ours=self._sharing.is_ours)
        if over and any(file.is_there for file in self._files.values()):
            self._log.forget(over)
            self._compare_with_what_others_know()

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
                with contextlib.closing(LocalFile(file.path)) as content:
                    if (content.stat.st_dev, content.stat.st_ino) != file.key or not self._is_as_it_was(
                        file, content, reading.position
                    ):
                        continue
                    marker = self._mark(file, reading, content.read)
                self._log.put_at_once(marker)

    # -- reading -----------------------------------------------------------------------------------------------------

    def _has_more(self, file: FollowedFile, now: float) -> bool:
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

    def _is_complete(self, file: FollowedFile, now: float) -> bool:
        after = self._settings.complete_after
        return after is not None and now - file.grown_at >= after

    def _read_plain(self, file: FollowedFile, reading: Reading, limits: Limits) -> Part | None:
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

    def _content_of(self, file: FollowedFile, reading: Reading) -> LocalFile | None:
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

    def _is_as_it_was(self, file: FollowedFile, content: LocalFile, at: int) -> bool:
        """Does it begin as it did, and does what was read last still end where it did?"""
        length, its = file.second or file.print_
        before = max(0, at - len(file.tail))
        return (
            content.stat.st_size >= at
            and digest(content.read(0, length)) == its
            and (not file.tail or content.read(before, at - before) == file.tail)
        )

    def _unpack(self, file: FollowedFile, reading: Reading, limits: Limits) -> Part | None:
        content = self._decompressed.get(reading.name)
        if content is None:
            content = opened(file)
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

    def _print_again(self, file: FollowedFile, reading: Reading, read: Callable[[int, int], bytes]) -> bool:
        """The second print, with the first block that has more of the content than its print; and marks.

        False: it may be another's content by now, and is to be looked at again.
        """
        at, length = reading.position, file.print_[0]
        if at > length and file.second is None and length < PRINT_BYTES:
            head = read(0, PRINT_BYTES)
            if not self._go_beyond(file, reading, head):
                return False
            file.second = (min(at, PRINT_BYTES), digest(head[:at]))
            self._put(reading, print_name(reading.name, reading.generation, file.second))
            file.marked = at if at <= PRINT_BYTES else 0
        if at > length and at >= _MARK_TIMES * file.marked:
            self._put(reading, self._mark(file, reading, read))
        return True

    def _put(self, reading: Reading, name: str, value: int = 0) -> None:
        """Have a name of what is known go in with the next block."""
        if name not in self._log.known:
            reading.before.append(OffsetLink(self.source, name, 0, ORIGIN, value, LinkKind.ORIGIN))

    def _mark(self, file: FollowedFile, reading: Reading, read: Callable[[int, int], bytes]) -> str:
        """The name of a mark of what is read."""
        begin = max(0, reading.position - PRINT_BYTES)
        file.marked = reading.position
        mark = (reading.position, digest(read(begin, reading.position - begin)))
        if begin == 0:
            file.second = mark
        return print_name(reading.name, reading.generation, mark)

    def _go_beyond(self, file: FollowedFile, reading: Reading, head: bytes) -> bool:
        """Be the first to read what is behind the print, by this name; False: it is another name's content."""
        end = head.find(b"\n", file.print_[0]) + 1 or len(head)
        like = f"{end}-{digest(head[:end])}"
        if self._log.next_beyond(like) and self._was_read_by_another_name(file, reading, head):
            return False
        self._put(reading, self._log.go_beyond(like), number_of(reading.name))
        return True

    def _was_read_by_another_name(self, file: FollowedFile, reading: Reading, head: bytes) -> bool:
        """Has another gone on with this very content by another name, since it has this one? Then it has that one.

        Two had it in different files, as when it was copied and cut: and more contents begin alike, so that it was no
        longer known which it is. What is in another file that is there is another content.
        """
        lengths = {length for length, _ in self._log.by_second if length <= len(head)}
        alike = [(length, digest(head[:length])) for length in sorted(lengths)]
        for name, generation in [at for second in alike for at in self._log.by_second.get(second, ())]:
            at = self._log.known.get(name)
            found = self._log.print_of(name)
            if at is None or at.generation != generation or name == reading.name or found is None:
                continue
            if not self._may_go_on_in(file, name, head):
                continue
            live = self._bound.get(name)
            if live is not None and live.is_there and self._is_still(live):
                continue
            if self._log.seen_at[name, generation] <= file.bound_at:
                self._receiver.report_error(
                    f"{file.path} begins as {name} did, {at.offset} bytes of which were read, and which is in no file "
                    "now: it is read as another file, and what is the same comes twice if it is that one; set "
                    "fingerprint_lines to more lines than are the same in all files"
                )
                continue
            if live is not None:
                self._drop(live)
            self._unbind(file)
            file.print_ = found
            is_it = Reading(name)
            is_it.go_to(at)
            self._bind(file, is_it)
            self._end(reading, file.print_[0] + 1, is_it)
            return True
        return False

    def _end(self, reading: Reading, beyond: int, other: Reading) -> None:
        """A name that a content had beside its own is over; that goes in with that one's next block."""
        at = self._log.known.get(reading.name)
        generation = 0 if at is None else at.generation + 1
        other.before.append(OffsetLink(self.source, reading.name, generation, ORIGIN, beyond, LinkKind.ORIGIN))

    def _last_line_end(self, file: FollowedFile) -> int:
        with contextlib.closing(LocalFile(file.path)) as content:
            end = content.stat.st_size
            while end > 0:
                begin = max(0, end - OVERLAP_BYTES)
                found = content.read(begin, end - begin).rfind(b"\n")
                if found >= 0:
                    return begin + found + 1
                end = begin
            return 0

    # -- small things ------------------------------------------------------------------------------------------------

    def _ask_again(self) -> None:
        """What the driver log has by now."""
        self._log.refresh()
        self._compare_with_what_others_know()

    def _compare_with_what_others_know(self) -> None:
        """After the driver log was asked. Another may have read on by a name, or begun it anew: is it this content?"""
        for name, file in self._bound.items():
            if not file.done:
                self._log.by_print.setdefault(file.print_, set()).add(name)
        for name, file in list(self._bound.items()):
            reading, at = file.reading, self._log.known.get(name)
            if at is None or reading is None or at.generation < reading.generation:
                continue
            second = self._log.seconds.get((name, at.generation))
            if file.done:
                if at.generation > reading.generation and file.marker in self._log.known and name != file.marker:
                    # That name is another content's by now.
                    self._unbind(file)
                    self._bind(file, Reading(file.marker))
            elif at.generation == reading.generation and (
                second == file.second if second is not None else not self._log.is_over(name, at, file.print_[0])
            ):
                continue
            elif file.is_there:
                self._compare_with_what_is_known(file, reading, at, second)
            elif self._is_refused(file, reading, at, second):
                self._drop(file)

    def _compare_with_what_is_known(
        self, file: FollowedFile, reading: Reading, at: Position, second: Print | None
    ) -> None:
        try:
            is_it = at.generation == reading.generation and begins_so(self._head(file)[0], second)
        except OSError:
            is_it = False
        if second is None or not is_it:
            self._unbind(file)
            self._look_at = 0.0
        elif file.second is None or file.second[0] < second[0]:
            self._take_prints(file, reading)

    def _is_refused(self, file: FollowedFile, reading: Reading, at: Position, second: Print | None) -> bool:
        """Will what was read here of a content that is in no file be refused, for others have read on?"""
        ours = file.second
        return (at.generation, at.offset) > (reading.generation, reading.logged) or (
            second is not None and (ours is None or (ours[0] == second[0] and ours != second))
        )

    def _is_ours(self, file: FollowedFile) -> bool:
        return self._sharing.is_ours(file.print_[1])

    def _tell(self, path: str, what: str, error: OSError) -> None:
        """Once of each file and reason."""
        told = (path, str(error))
        if told not in self._told:
            self._told.add(told)
            self._receiver.report_error(f"{path} {what}", error)


def _base_of(pattern: str) -> str:
    """The directory before the first wild card."""
    parts = pattern.split("/")
    wild = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return "/".join(parts[:wild]) or "/"
