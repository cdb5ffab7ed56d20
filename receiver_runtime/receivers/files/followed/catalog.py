"""Compose the catalog of followed files: which files there are, and what is in them.

``FollowedCatalog`` composes the modules beside it and is what ``files.reader`` calls. It owns the order of the steps of
a look and of a read, and no other state. It must never look at a file itself. Nothing is remembered anywhere except in
the driver log, as ``known_contents`` describes it.

- ``directory`` lists files, ``changes`` compares them with the last look;
- ``naming`` chooses which content a file has, by the rules of ``identity`` and the bytes in ``comparisons``;
- ``bindings`` holds files, names and contents together; ``followed_file`` is the state of one;
- ``reading`` returns the next piece of a file; ``marks`` and ``continuations`` register by what it is found again;
- ``reconciliation`` compares all that with the driver log; ``retirement`` ends what is gone.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.file_kinds import UnreadableKindError
from receiver_runtime.receivers.files.followed.bindings import Bindings
from receiver_runtime.receivers.files.followed.candidates import Candidates
from receiver_runtime.receivers.files.followed.changes import ChangeDetector
from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
from receiver_runtime.receivers.files.followed.continuations import Continuations
from receiver_runtime.receivers.files.followed.directory import Directory, LookSchedule
from receiver_runtime.receivers.files.followed.identity import Identity
from receiver_runtime.receivers.files.followed.marks import Marks
from receiver_runtime.receivers.files.followed.naming import Naming
from receiver_runtime.receivers.files.followed.reading import (
    ContentReplacedError,
    OpenFiles,
    PieceReader,
    unread_of,
)
from receiver_runtime.receivers.files.followed.reconciliation import Reconciliation
from receiver_runtime.receivers.files.followed.reports import FileFailure, Reports
from receiver_runtime.receivers.files.followed.retirement import Retirement
from receiver_runtime.watching.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from receiver_runtime.receivers.files.declaration import FollowedSource
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.records import Limits, LineReader, Part, Reading
    from receiver_runtime.receivers.files.sharing import Sharing
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import OffsetLink, Position
    from tracker_store.receivers.source_lag import Place, Unread


class FollowedCatalog:
    """Compose a catalog of followed files. See ``files.reader.Catalog`` for its methods."""

    source = "followed_files"

    def __init__(
        self,
        source: FollowedSource,
        lines: LineReader,
        receiver: Receiver,
        sharing: Sharing,
        host: str,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or Clock()
        self._starts_at_end = source.start == "latest"
        self._reports = Reports(receiver)
        self._schedule = LookSchedule(source.poll_interval)
        self._directory = Directory(source, self._reports)
        self._open = OpenFiles()
        self._reader = PieceReader(source, lines, self._open, self._schedule, self._clock)
        prefix = "" if source.shared else f"{host}/"
        self._known = KnownContents(self.source, prefix, receiver.supervisor.block_path.positions)
        self._bindings = Bindings(
            self._known,
            sharing,
            self._open,
            self._schedule,
            self._reports,
            self._clock,
            tree=self._directory.tree,
        )
        self._changes = ChangeDetector(self._bindings, self._open, self._schedule, self._clock)
        self._reconciliation = Reconciliation(self._known, self._bindings, sharing, self._schedule)
        identity = Identity(self._known, self._bindings, self._open)
        continuations = Continuations(self._known, self._bindings, identity, self._changes, self._reports)
        self._marks = Marks(self._known, self._bindings, continuations, self._reports)
        self._retirement = Retirement(
            self._known,
            self._bindings,
            self._reader,
            self._reconciliation,
            sharing,
            self._reports,
            forget_after=source.forget_after,
            now=self._clock.monotonic(),
        )
        candidates = Candidates(self._known, self._bindings, identity, self._changes, self._retirement)
        self._naming = Naming(
            source,
            self._known,
            self._bindings,
            identity,
            candidates,
            self._reconciliation,
            self._marks,
            self._reports,
        )

    def reload(self, known: Mapping[str, Position]) -> None:
        """See ``Catalog``."""
        self._reconciliation.learn(known)
        # Their links are of what is read again.
        self._retirement.take_changed()
        self._bindings.rewind()
        self._schedule.hurry()

    def release(self) -> None:
        """See ``Catalog``."""
        self._bindings.release_others()

    def look(self) -> None:
        """See ``Catalog``."""
        now = self._clock.monotonic()
        if not self._schedule.is_due(now):
            self._changes.look_at_growing(now)
            return
        self._schedule.begin(now)
        self._reconciliation.begin_look()
        found = self._directory.list_files()
        if found is None:
            return
        self._changes.note(found, now)
        self._changes.check_changed()
        at_end = self._starts_at_end and not self._known.is_registered(self._known.names.start)
        if self._naming.name_files(now, at_end=at_end) and at_end:
            self._known.register(self._known.names.start)
        self._retirement.give_up_gone(now)
        self._marks.mark_done()
        self._marks.mark_idle(now)
        self._retirement.forget_expired(now)

    def ready(self) -> Iterable[Reading]:
        """See ``Catalog``."""
        now = self._clock.monotonic()
        files = [file for file in self._bindings.contents() if self._reader.has_more(file, now)]
        return [file.reading for file in sorted(files, key=attrgetter("age")) if file.reading is not None]

    def read(self, reading: Reading, limits: Limits) -> Part | None:
        """See ``Catalog``."""
        file = self._bindings.named(reading.name)
        if file is None or not file.ours:
            return None
        if not self._known.is_claimed(reading.name):
            # It was another receiver's when it was named, and that one may have named it otherwise.
            self._reconciliation.reidentify_unclaimed()
            return None
        try:
            part = self._read(file, reading, limits)
            file.unreadable = None
        except ContentReplacedError:
            self._bindings.replace(file)
        except UnreadableKindError as error:
            self._naming.refuse(file, error)
        except OSError as error:
            self._reports.report_failure(file.path, FileFailure.UNREADABLE, error)
            file.note_failure(error)
        else:
            return part
        return None

    def _read(self, file: FollowedFile, reading: Reading, limits: Limits) -> Part | None:
        piece = self._reader.read(file, reading, limits)
        if piece is None:
            return None
        if piece.part is not None and piece.part.hole is not None:
            self._reports.report_hole(file.path, piece.part.hole)
        if piece.reread is not None:
            if not self._marks.extend(file, reading, piece.reread):
                return None
            if file.codec is None:
                # The read may have shown more than the last look.
                file.size = max(file.size, reading.position)
        return piece.part

    def take_changed(self) -> list[Reading]:
        """See ``Catalog``."""
        return self._retirement.take_changed()

    def registered(self, links: Sequence[OffsetLink]) -> None:
        """See ``Catalog``."""
        for link in links:
            file = self._bindings.named(link.partition)
            if file is not None:
                file.registered = link.to_offset

    def unread(self) -> Mapping[Place, Unread]:
        """See ``Catalog``. In bytes; a compressed file counts as it is stored, until it is read to its end."""
        return {
            (self.source, file.reading.name): unread_of(file, file.reading)
            for file in self._bindings.contents()
            if file.reading is not None and file.ours
        }

    def close(self) -> None:
        """See ``Catalog``."""
        self._open.close_all()
