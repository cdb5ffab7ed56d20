"""Reads files into blocks, on one thread, from one ``on_start`` to its ``on_stop``. A ``Catalog`` knows the files.

Only the driver log decides how far a file was read, as with Kafka's partitions (``kafka.reading``). It registers a
block only if its position of each file is exactly where the block's lines begin. So no line is left out or comes twice,
even if several receivers read the same file.

- Pieces of several files make one block; each brings its link.
- A position may move without a record: past a line that was put aside, past lost bytes, or to a new generation of the
  file. Such a link goes in with the next block that has records. If the receiver ends before that, its successor finds
  the same again.
- *Conflict*: another receiver has moved a file's position. The reader drops everything under way and loads all
  positions again.
- *Files shared differently*: the reader releases files that are another receiver's now at once. It reads files that
  became its own a little later, from the driver log's position at that time.
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

    from receiver_runtime.receivers.files.records import Part, Reading
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import OffsetLink, Position
    from tracker_store.receivers.source_lag import Place, Unread

_SHARE = 4  # read a file in pieces of a quarter of a block's bytes, so that a block can hold pieces of several files
_MOST_LINES = 500_000  # lines in one piece; a block is handed over when it has as many


class Catalog(Protocol):
    """Find files and read them. Only the reader's thread calls it."""

    @property
    def source(self) -> str:
        """Return the name by which the driver log has the positions."""
        ...

    def reload(self, known: Mapping[str, Position]) -> None:
        """Go to these positions, and read again what is beyond them. Also called once before the first look."""
        ...

    def look(self) -> None:
        """Find files that have come, gone or changed, where it is time to look."""
        ...

    def ready(self) -> Iterable[Reading]:
        """Yield the files of this receiver that may have something to read, in the order of reading."""
        ...

    def read(self, reading: Reading, limits: Limits) -> Part | None:
        """Read the next piece of a file; None: there is none."""
        ...

    def take_changed(self) -> list[Reading]:
        """Return the files that have links to go in, although nothing of them was read."""
        ...

    def release(self) -> None:
        """Stop reading files that are another receiver's now."""
        ...

    def registered(self, links: Sequence[OffsetLink]) -> None:
        """Note that these links are in the driver log."""
        ...

    def unread(self) -> Mapping[Place, Unread]:
        """Return what this receiver's files have that is not read, as of the last look."""
        ...

    def close(self) -> None:
        """Close every file."""
        ...


class MakeCatalog(Protocol):
    """Make a catalog. Called once it is known which receivers share the files."""

    def __call__(self, receiver: Receiver, sharing: Sharing, host: str) -> Catalog: ...


class FilesReader:
    """See the module. Call ``start`` and ``stop`` once each.

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
        # Only the thread uses everything below.
        self._catalog: Catalog
        self._hand_over = LinkedHandOver(receiver, self._on_registered)
        # Versions of ``Sharing``: the one by which files are read, and the one by which others' files were released.
        self._version = self._released = 0
        # Files whose links go in with the next block, in the order in which they changed.
        self._changed: dict[Reading, None] = {}

    def start(self) -> None:
        """Start to read; returns at once."""
        self._sharing.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; returns when what was handed over is registered, or refused."""
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
        except BaseException as error:  # noqa: BLE001  it is reported, and the receiver restarts
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
                self._share_again()
            self._catalog.look()
            self._receiver.report_unread(self._catalog.unread)
            if not self._round():
                self._stopping.wait(max(0.0, began + self._supervisor.settings.block_interval - time.monotonic()))

    def _load(self) -> None:
        """Load the positions from the driver log; what was read beyond them is read again."""
        self._changed.clear()
        self._catalog.reload(self._supervisor.block_path.positions.all_of(self._catalog.source))

    def _share_again(self) -> None:
        """Share the files again after receivers came or went.

        First wait until what was handed over is registered, then continue from the driver log's positions.
        """
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
        """Read a piece of each file that has one; return whether there is more to read at once."""
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
        # After a conflict the catalog is reloaded anyway.
        if not self._hand_over.has_conflict:
            self._catalog.registered(links)

    def _recover(self) -> None:
        """Drop everything under way after a conflict, and load the positions from the driver log."""
        self._hand_over.recover()
        self._load()
