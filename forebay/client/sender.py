"""Send records to an HTTP source of Forebay from any program: spooled on its disk, and registered each once, in order.

Owns the spool's threads and what callers wait for. It must never lose a record whose `send` has returned.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from forebay.client.batch import fitting
from forebay.client.batch_size import BatchLimits
from forebay.client.channel_requests import ChannelRequests
from forebay.client.delivery import Delivery
from forebay.client.errors import (
    ChannelMismatchError,
    FlushTimeoutError,
    InputOpenError,
    RecordRefusedError,
    SenderClosedError,
    SpoolFullError,
)
from forebay.client.framing import FRAMINGS
from forebay.client.spool import Spool

if TYPE_CHECKING:
    import os
    import ssl
    from collections.abc import Iterable, Iterator

    from forebay.client.framing import Record
    from forebay.client.meeting import OnMismatch

_log = logging.getLogger("forebay.client")

# Of the frames in which `send_many` spools.
_FRAME_BYTES, _FRAME_RECORDS = 2**18, 1_000
_FRAMES = 8  # a spool's limit is at least this many frames of several records
_CLOSE_SECONDS = 10.0
_JOIN_SECONDS = 10.0

Fsync = Literal["always", "interval", "never"]


@dataclass(frozen=True, slots=True)
class SenderLimits:
    """Hold a sender's limits.

    Args:
        linger: seconds for which a record waits for others of its request.
        batch_records: maximum number of records in a request.
        batch_bytes: maximum size of a request, except that a record is never divided.
        spool_bytes: maximum size of the spool.
        full_timeout: seconds for which `send` waits while the spool is full, before it raises.
        fsync_interval: seconds between syncs, with `fsync="interval"`.
        request_timeout: seconds in which a request must be answered; more than the receiver's
            `acknowledgement_timeout`.
        set_back_timeout: seconds for which the channel may be before what was registered, as after a failover of the
            receiver's Postgres, before that is an error.
        refused: maximum number of records that are set aside, before the sender ends with an error.
    """

    linger: float = 0.02
    batch_records: int = 10_000
    batch_bytes: int = 2**20
    spool_bytes: int = 2**30
    full_timeout: float = 30.0
    fsync_interval: float = 1.0
    request_timeout: float = 60.0
    set_back_timeout: float = 60.0
    refused: int = 100

    def __post_init__(self) -> None:
        """Check them. Raises ValueError."""
        for name in self.__slots__:
            value = getattr(self, name)
            least = 0 if name in {"linger", "full_timeout", "set_back_timeout", "refused"} else 1e-3
            if not least <= value < float("inf"):
                raise ValueError(f"limits: {name} is {value}: give a number of at least {least}")


@dataclass(frozen=True, slots=True)
class SenderStatus:
    """Say how far a sender is.

    Args:
        channel: its name.
        taken: records that the spool has taken since it was made.
        registered: of these, how many are registered or set aside.
        waiting: the others.
        refused: records in the spool's `refused.jsonl`.
        dead_letters: records of this process that the receiver kept as dead letters.
        spool_bytes: size of the spool.
        last_error: why the last request must be sent again, or the sender ended; "": nothing is wrong.
    """

    channel: str
    taken: int
    registered: int
    waiting: int
    refused: int
    dead_letters: int
    spool_bytes: int
    last_error: str


class Sender:
    """Send records to one channel of a stream. Any thread may call its methods; use it as a context, or `close` it.

    Args:
        url: the stream's, as `http://host:8080/v1/orders`.
        channel: a name that no other sender of the stream has at the same time.
        spool: a folder on a local disk, for this sender alone.
        token: sent as `Authorization: Bearer`.
        records: what the records are: `"json"`.
        fsync: what a record whose `send` has returned survives. All survive a kill of the process. `"always"`: it
            survives a power cut too. `"interval"`: unless it was sent in the last `fsync_interval`. `"never"`: the
            operating system writes it when it likes.
        on_mismatch: what happens if spool and channel do not fit together; see `ChannelMismatchError`.
        tls: for `https`, such as `ssl.create_default_context(cafile=...)`; None: what the system trusts.
        limits: sizes and times.

    Raises:
        ValueError: an argument is wrong.
        SpoolLockedError: the spool is open already.
        SpoolDamagedError: the spool is not as it was written, or of another channel.
        ChannelMismatchError: its records were registered at another URL's path.
        OSError: the folder can't be used.
    """

    def __init__(
        self,
        url: str,
        *,
        channel: str,
        spool: str | os.PathLike[str],
        token: str | None = None,
        records: Literal["json"] = "json",
        fsync: Fsync = "interval",
        on_mismatch: OnMismatch = "error",
        tls: ssl.SSLContext | None = None,
        limits: SenderLimits | None = None,
    ) -> None:
        limits = limits or SenderLimits()
        for name, value, known in (
            ("records", records, tuple(FRAMINGS)),
            ("fsync", fsync, ("always", "interval", "never")),
            ("on_mismatch", on_mismatch, ("error", "resend", "discard")),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}: give one of {', '.join(known)}")
        requests = ChannelRequests(url, channel, token=token, timeout=limits.request_timeout, tls=tls)
        self._channel = channel
        self._framing = FRAMINGS[records]
        self._fsync = fsync
        self._limits = limits
        self._spool = Spool(Path(spool), channel, self._framing, most_bytes=limits.spool_bytes)
        known_path = self._spool.state.path
        if on_mismatch == "error" and known_path not in {"", requests.path}:
            self._spool.close()
            raise ChannelMismatchError(
                f"{spool} holds records of {known_path}, and the URL's path is {requests.path}: give the URL of that "
                "stream, or another spool; if it is the same one at another path, open the sender once with "
                'on_mismatch="resend" (--on-mismatch resend)'
            )
        self._delivery = Delivery(
            self._spool,
            requests,
            self._framing,
            BatchLimits(limits.batch_records, limits.batch_bytes, limits.linger),
            syncs=fsync != "never",
            on_mismatch=on_mismatch,
            set_back_timeout=limits.set_back_timeout,
            max_refused=limits.refused,
        )
        self._closing = threading.Event()
        self._is_closed = False
        self._close_lock = threading.Lock()
        self._threads = [threading.Thread(target=self._delivery.run, name=f"sender-{channel}", daemon=True)]
        if fsync == "interval":
            self._threads.append(threading.Thread(target=self._sync, name=f"sender-sync-{channel}", daemon=True))
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(timeout=_CLOSE_SECONDS if kind is None else 0.0)

    # -- records -------------------------------------------------------------------------------------------------------

    def send(self, record: Record) -> None:
        """Spool a record: its bytes, its text, or a mapping or list that is written as JSON. It is sent soon.

        Raises:
            RecordRefusedError: it can't be sent as it is.
            SpoolFullError: the spool was full for `full_timeout`.
            SenderClosedError: the sender is closed.
            SendError: the sender has failed, and why.
            OSError: it could not be written.
        """
        end = self._append(self._framing.encode(record), 1)
        if self._fsync == "always":
            self._spool.sync(end)

    def send_many(self, records: Iterable[Record]) -> None:
        """Spool records, faster than one by one. Raises as `send`: then those before the record may be spooled."""
        end = 0
        for group in _groups(records):
            try:
                framed = self._framing.encode_many(group)
            except (RecordRefusedError, TypeError):
                # Those before it are sent.
                for record in group:
                    end = self._append(self._framing.encode(record), 1)
                raise
            end = self._append_parts(framed, len(group))
        if self._fsync == "always" and end:
            self._spool.sync(end)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records that were sent before are registered, or set aside.

        Raises:
            FlushTimeoutError: they are not, after `timeout` seconds, and why.
            SendError: the sender has failed, and why.
        """
        self._spool.check_process()
        end = self._spool.end
        if self._delivery.wait_registered(end, timeout):
            return
        if self._delivery.failure is not None:
            raise self._delivery.failure
        if self._is_closed:
            raise SenderClosedError(f"{self._spool.folder} is closed: open another sender")
        status = self.status()
        raise FlushTimeoutError(
            f"{status.waiting} records of channel {self._channel} are not registered after {timeout or 0:g} s: "
            f"{status.last_error or 'there is no answer yet'}: they stay in {self._spool.folder}, and are sent again"
        )

    def status(self) -> SenderStatus:
        """Return how far it is."""
        spool = self._spool
        with spool.changed:
            spool.refused.notice_removal()
            failure = self._delivery.failure
            return SenderStatus(
                self._channel,
                taken=spool.end,
                registered=spool.acknowledged,
                waiting=spool.end - spool.acknowledged,
                refused=spool.refused.count,
                dead_letters=self._delivery.dead_letters,
                spool_bytes=spool.used_bytes,
                last_error=self._delivery.last_error if failure is None else str(failure),
            )

    def begin_input(self, *, resume: bool = False, abandon: bool = False) -> int:
        """Note durably that an input is being read, and return how many of its records the spool has already taken.

        An input is a sequence of records that its reader can read again from the first one, such as a file.

        Args:
            resume: the input is the last one.
            abandon: begin another one even if the last one was not read to its end.

        Raises:
            InputOpenError: it was not, and neither is given.
            OSError: it could not be noted.
        """
        self._check()
        spool = self._spool
        with spool.changed:
            first, end = spool.state.input_first, spool.end
            if not resume and not abandon and spool.state.is_input_open:
                raise InputOpenError(
                    f"{spool.folder} has taken {end - first} records of an input that was not read to its end"
                )
            # A spool that lost its segments begins again at 0.
            first = min(first, end) if resume else end
            spool.note_input(first, is_open=True)
            return end - first

    def end_input(self) -> None:
        """Note durably that all records of the input are spooled. Raises SendError, and OSError."""
        self._check()
        self._spool.sync()
        self._spool.note_input(self._spool.state.input_first, is_open=False)

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Wait until the records are registered, at most `timeout` seconds, and close. The others stay in the spool."""
        if self._spool.is_of_another_process:
            # Its threads and its connection are the other process's.
            if not self._is_closed:
                self._is_closed = True
                self._spool.close()
            return
        with self._close_lock:
            if self._is_closed:
                return
            self._closing.set()
            if self._delivery.failure is None and timeout > 0:
                self._delivery.wait_registered(self._spool.end, timeout)
            self._is_closed = True
            if (waiting := self.status().waiting) > 0:
                _log.warning("%s has %d records that are not registered yet", self._spool.folder, waiting)
            self._delivery.stop()
            for thread in self._threads:
                thread.join(_JOIN_SECONDS)
            if self._fsync != "never":
                self._spool.sync()
            self._spool.close()

    # -- the spool -----------------------------------------------------------------------------------------------------

    def _append(self, framed: bytes, count: int) -> int:
        try:
            self._check()
            return self._spool.append(framed, count)
        except SpoolFullError:
            return self._append_when_there_is_room(framed, count)

    def _append_parts(self, framed: bytes, count: int) -> int:
        """Append records in frames of which a spool has room for several."""
        most = self._limits.spool_bytes // _FRAMES
        end = 0
        while count and len(framed) > most:
            part, taken = fitting(self._framing, framed, 0, count, most)
            end = self._append(part, taken)
            framed, count = framed[len(part) :], count - taken
        return self._append(framed, count) if count else end

    def _append_when_there_is_room(self, framed: bytes, count: int) -> int:
        deadline = time.monotonic() + self._limits.full_timeout
        while True:
            with self._spool.changed:
                self._check()
                try:
                    return self._spool.append(framed, count)
                except SpoolFullError as error:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        said = self._delivery.last_error or "the receiver is slower"
                        raise SpoolFullError(f"{error}: {said}") from error
                    self._spool.changed.wait(left)

    def _check(self) -> None:
        self._spool.check_process()
        if self._closing.is_set():
            raise SenderClosedError(f"{self._spool.folder} is closed: open another sender")
        if (failure := self._delivery.failure) is not None:
            raise failure

    def _sync(self) -> None:
        while not self._closing.wait(self._limits.fsync_interval):
            try:
                self._spool.sync()
            except Exception as error:  # noqa: BLE001  the next send raises it
                _log.warning("%s", error)


def _groups(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield records in groups that are spooled at once."""
    group: list[Record] = []
    size = 0
    for record in records:
        group.append(record)
        size += len(record) if hasattr(record, "__len__") else 0
        if size >= _FRAME_BYTES or len(group) >= _FRAME_RECORDS:
            yield group
            group, size = [], 0
    if group:
        yield group
