"""Reads files into blocks, on one thread, from one ``on_start`` to its ``on_stop``. Which files there are, others know.

Who decides how far a file was read: the driver log alone, as with Kafka's partitions (``kafka.reader``). A block goes
in only where the log stands exactly where its lines begin, so that nothing read here can be left out or come twice,
whoever else believes to read the file.

- Pieces of several files make one block; each brings its link.
- What moves a position and has no record (a line that went aside, what was lost, a file made anew) goes in with the
  next block that has one. When we end before that, it is found again.
- *Conflict*: another receiver has read a file on. Everything under way is dropped, all positions are asked for anew.
- *Shared anew*: what is another's now is let go at once; what is ours now is read a little later, from where the driver
  log is by then.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from receiver_runtime.receivers.files.records import Limits
from receiver_runtime.receivers.files.sharing import Sharing
from receiver_runtime.receivers.linked_hand_over import LinkedHandOver

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from receiver_runtime.receiver import Receiver
    from receiver_runtime.receivers.files.records import Part, Reading
    from tracker_store.blocks import OffsetLink, Position

# Of a block: so large a piece of one file; and lines in it at most.
_SHARE = 4
_MOST_LINES = 500_000


class Catalog(Protocol):
    """Which files there are, and what is in them. The reader's thread alone."""

    @property
    def source(self) -> str:
        """By which name the driver log has the positions."""
        ...

    def reload(self, known: Mapping[str, Position]) -> None:
        """These are the positions, also at first; whatever was read beyond them is to be read again."""
        ...

    def look(self) -> None:
        """See what has come, gone and changed, where it is time to."""
        ...

    def ready(self) -> Iterable[Reading]:
        """What may have something to be read and is ours, in the order of reading."""
        ...

    def read(self, reading: Reading, limits: Limits) -> Part | None:
        """The next piece of one; None: there is none."""
        ...

    def take_changed(self) -> list[Reading]:
        """Those that have links to go in, though nothing of them was read."""
        ...

    def release(self) -> None:
        """Others share the files now: read no more of what is not ours."""
        ...

    def registered(self, links: Sequence[OffsetLink]) -> None:
        """These are in the driver log."""
        ...

    def close(self) -> None:
        """Let go of every file."""
        ...


class MakeCatalog(Protocol):
    """Makes a catalog when it is known who shares the files."""

    def __call__(self, receiver: Receiver, sharing: Sharing, host: str) -> Catalog: ...


class FilesReader:
    """See the module. ``start`` and ``stop`` once.

    Args:
        per_host: receivers on other hosts see other files.
    """

    def __init__(self, receiver: Receiver, make_catalog: MakeCatalog, *, name: str, per_host: bool) -> None:
        self._receiver = receiver
        self._supervisor = receiver.supervisor
        self._make_catalog = make_catalog
        self._name = name
        self._sharing = Sharing(self._supervisor.block_path.positions, per_host=per_host)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"files {name}", daemon=True)
        # All below is the thread's alone.
        self._catalog: Catalog
        self._hand_over = LinkedHandOver(receiver, self._on_registered)
        # Of who shares the files: by which they are read, and by which what is another's was let go.
        self._version = self._released = 0
        # Whose links go in with the next block, in the order in which they changed.
        self._changed: dict[Reading, None] = {}

    def start(self) -> None:
        """Begin to read; returns at once."""
        self._sharing.start()
        self._thread.start()

    def stop(self) -> None:
        """End; returns when what was handed over is registered, or refused."""
        self._stopping.set()
        self._sharing.give_up()
        self._thread.join()
        self._sharing.stop()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        host = self._sharing.wait_for_answer()
        if host is None:
            return
        try:
            self._catalog = self._make_catalog(self._receiver, self._sharing, host)
        except Exception as error:  # noqa: BLE001  a secret that is missing, an option that is wrong
            self._receiver.restart("the files can't be read", error)
            return
        try:
            self._read()
            self._hand_over.settle()
        except BaseException as error:  # noqa: BLE001  told, and begun anew
            self._hand_over.wait()
            self._receiver.restart("reading files failed", error)
        finally:
            self._catalog.close()

    def _read(self) -> None:
        while not self._sharing.settled():
            if self._stopping.wait(0.05):
                return
        self._version = self._released = self._sharing.version
        self._load()
        self._receiver.report_connected(self._name)
        while not self._stopping.is_set():
            began = time.monotonic()
            self._hand_over.collect()
            if self._hand_over.has_conflict:
                self._recover()
            if self._version != self._sharing.version:
                self._share_anew()
            self._catalog.look()
            if not self._round():
                self._stopping.wait(max(0.0, began + self._supervisor.settings.block_interval - time.monotonic()))

    def _load(self) -> None:
        """Positions are the driver log's; whatever was read beyond them is read again."""
        self._changed.clear()
        self._catalog.reload(self._supervisor.block_path.positions.all_of(self._catalog.source))

    def _share_anew(self) -> None:
        """Others came or went: what was handed over goes in, and we go on where the log is."""
        version = self._sharing.version
        if self._released != version:
            self._released = version
            self._catalog.release()
            self._hand_over.settle()
        if self._sharing.settled():
            self._version = version
            self._hand_over.settle()
            if self._hand_over.has_conflict:
                self._recover()
            else:
                self._load()

    def _round(self) -> bool:
        """A piece of each file that has one; says whether there is more to be read at once."""
        most = self._supervisor.settings.max_block_bytes
        lines = self._supervisor.block_path.piece(_MOST_LINES, most // _SHARE)
        limits = Limits(max(1, most // _SHARE), lines)
        batches: list[pa.RecordBatch] = []
        nbytes = rows = 0
        more = False
        for reading in self._catalog.ready():
            if self._stopping.is_set() or self._hand_over.has_conflict:
                break
            part = self._catalog.read(reading, limits)
            if part is None:
                continue
            if part.letters:
                self._receiver.store_dead_letters(part.letters)
            more = more or part.more
            self._changed[reading] = None
            if part.batch is not None:
                batches.append(part.batch)
                nbytes += part.batch.nbytes
                rows += part.batch.num_rows
            if nbytes >= most // 2 or rows >= lines:
                self._push(batches)
                batches, nbytes, rows = [], 0, 0
        if batches:
            self._push(batches)
        return more

    def _push(self, batches: Sequence[pa.RecordBatch]) -> None:
        source = self._catalog.source
        for reading in self._catalog.take_changed():
            self._changed[reading] = None
        links = [link for reading in self._changed for link in reading.take_links(source)]
        self._changed.clear()
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        self._hand_over.push(batch, links)

    def _on_registered(self, links: Sequence[OffsetLink]) -> None:
        # After a conflict the catalog is loaded again.
        if not self._hand_over.has_conflict:
            self._catalog.registered(links)

    def _recover(self) -> None:
        """After a conflict: nothing is under way, and positions are the driver log's."""
        self._hand_over.recover()
        self._load()
