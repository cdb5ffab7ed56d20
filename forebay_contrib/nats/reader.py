"""Read a durable consumer's messages into blocks, from one ``on_start`` to its ``on_stop``.

Two records decide what was read: the consumer's list of unacknowledged messages in JetStream, and the keys of
registered messages in the driver log. A message is acknowledged when its block is registered; until then the server
gets signs that it is in progress. So JetStream delivers again what a receiver that is gone had got, and a message that
is delivered again although it is registered is recognised by its key and left out.

There are two threads. The connection's thread, with its event loop, requests messages, acknowledges them and keeps the
connection alive. The other one hands messages over, and waits when too many are not registered yet; meanwhile no more
are requested.

- *A lost connection* is a restart, with the supervisor's pauses; what was delivered comes again after ``ack_wait``.
- *At a stop* no more messages are requested. What was read is handed over, and acknowledged when it is registered.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from nats.errors import NoServersError

from forebay_contrib.nats.client import NatsError, RawHeaders, TolerantClient
from forebay_contrib.nats.consumer import DurableConsumer
from forebay_contrib.nats.held_messages import HeldMessages
from forebay_contrib.nats.message_request import REQUEST_SECONDS, MessageRequest
from forebay_contrib.nats.records import Delivered, StreamPlace, batch_of, keys_of, sorted_out
from receiver_runtime.receivers.keyed_hand_over import HandOverClosedError, KeyedHandOver
from receiver_runtime.reporting.source_lag import LOOK_SECONDS
from receiver_runtime.sources.fields.tls_context import client_context
from tracker_store.receivers.source_lag import Unread

if TYPE_CHECKING:
    from concurrent.futures import Future

    from nats.aio.msg import Msg
    from nats.js.api import ConsumerInfo

    from forebay_contrib.nats.declaration import NatsJetStream
    from forebay_contrib.nats.session import KnownConsumer
    from receiver_runtime.receivers.keyed_blocks import HandedOver
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.receivers.source_lag import Place

_log = structlog.get_logger(__name__)

# Messages of one request, at most and at least.
_MOST_MESSAGES = 5_000
_LEAST_MESSAGES = 10
# How long to gather messages after the first one; they are handed over together.
_GATHERING_SECONDS = 0.005
# How long to wait for room to read more, and after a request that brought nothing.
_PAUSE_SECONDS = 0.02
# Batches, at most, that are handed over and not registered yet.
_MOST_UNDER_WAY = 16
_RECONNECT_SECONDS = 1  # between two attempts to connect to the same server
_CLOSING_SECONDS = 2.0  # how long sending the last acknowledgements, and then closing, may take


class NatsReader:
    """Read messages; see the module. Call ``start`` and ``stop`` once."""

    def __init__(self, receiver: Receiver, source: NatsJetStream, known: KnownConsumer) -> None:
        self._receiver = receiver
        self._supervisor = receiver.supervisor
        self._source = source
        self._hand_over = KeyedHandOver(self._supervisor, most_in_flight=_MOST_UNDER_WAY)
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"nats {source.durable}", daemon=True)
        # Only the event loop's thread uses these.
        self._loop: asyncio.AbstractEventLoop
        self._client = TolerantClient()
        self._consumer = DurableConsumer(receiver, source, self._client, known)
        self._request = MessageRequest(self._client, source, largest=self._supervisor.settings.max_block_bytes)
        self._held: HeldMessages
        self._coming: list[Delivered] = []
        self._came = asyncio.Event()
        self._bytes_each = 1000.0
        self._failed: BaseException | None = None
        # When the newest message that was delivered came into the stream, in seconds since 1970.
        self._newest_at: float | None = None

    def start(self) -> None:
        """Begin to read; return at once."""
        self._thread.start()

    def stop(self) -> None:
        """End; return when what was handed over is registered and acknowledged, or refused."""
        self._stopping.set()
        self._hand_over.close()
        self._settled.set()
        self._thread.join()

    # -- the event loop's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001  reported, and started again
            if not self._stopping.is_set():
                self._receiver.restart("reading from NATS failed", error)
            else:
                _log.info("the connection could not be left as it should be", error=str(error))

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._held = HeldMessages(self._client, self._loop)
        pool = ThreadPoolExecutor(1, thread_name_prefix=f"nats {self._source.durable} blocks")
        tasks: list[asyncio.Task[None]] = []
        try:
            inbox = await self._open()
            self._receiver.report_connected(self._source.address)
            tasks = [asyncio.create_task(self._report_working()), asyncio.create_task(self._watch_consumer())]
            with contextlib.suppress(HandOverClosedError):
                while not self._stopping.is_set():
                    await self._step(inbox, pool)
            await self._loop.run_in_executor(None, self._settled.wait)
            await self._held.finish_acknowledging()
            await self._held.give_back(self._coming)
            # If the server does not answer now, the next process compares with an earlier note.
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._consumer.leave(), _CLOSING_SECONDS)
            await self._client.flush(timeout=max(1, round(_CLOSING_SECONDS)))
        finally:
            for task in tasks:
                task.cancel()
            pool.shutdown(wait=False)
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._client.close(), _CLOSING_SECONDS)

    async def _open(self) -> str:
        """Connect, and create the consumer if it is missing; return the inbox where its messages arrive."""
        source = self._source
        try:
            await self._client.connect(
                [f"nats://{server}" for server in source.servers.split(",")],
                name="forebay",
                allow_reconnect=False,
                # The client would try each server for two minutes; the supervisor tries again, and says so.
                max_reconnect_attempts=1,
                reconnect_time_wait=_RECONNECT_SECONDS,
                connect_timeout=max(1, round(source.connect_timeout)),
                ping_interval=10,
                error_cb=self._on_error,
                closed_cb=self._on_closed,
                **_login(source),
            )
        except NoServersError as error:
            raise NatsError(f"no server of {source.servers} can be reached: {self._client.last_error}") from error
        await self._consumer.open()
        inbox = self._client.new_inbox()
        await self._client.subscribe(inbox, cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1)
        return inbox

    async def _step(self, inbox: str, pool: ThreadPoolExecutor) -> None:
        """Request messages if no request is open, and hand over what came."""
        if not self._coming:
            await self._wait_for_messages(inbox)
        messages, self._coming = self._coming, []
        fresh = self._held.add(messages)
        if fresh:
            try:
                await self._loop.run_in_executor(pool, self._take, fresh)
            except HandOverClosedError:
                await self._held.give_back(fresh)
                raise

    async def _wait_for_messages(self, inbox: str) -> None:
        """Wait until messages came, or their request is over. Raises the reason if none will come."""
        room = self._source.in_flight - len(self._held)
        if room <= 0:
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            if self._request.left <= 0:
                most = int(self._supervisor.settings.max_block_bytes / self._bytes_each)
                most = min(room, max(_LEAST_MESSAGES, min(_MOST_MESSAGES, most)))
                await self._request.ask(inbox, self._supervisor.block_path.piece(most, 0))
            try:
                await asyncio.wait_for(self._came.wait(), REQUEST_SECONDS + self._source.connect_timeout)
            except TimeoutError:
                # The server must end each request with a status message.
                raise NatsError(f"the server did not answer for {self._source.connect_timeout:g} s") from None
            self._came.clear()
            if self._request.left > 0:
                await asyncio.sleep(_GATHERING_SECONDS)
            elif not self._coming:
                # The server may end every request at once: pause between them.
                await asyncio.sleep(_PAUSE_SECONDS)
        if self._failed is not None:
            raise self._failed

    async def _on_message(self, message: Msg) -> None:
        place = StreamPlace.of(message.reply)
        if place is not None:
            self._request.left -= 1
            self._newest_at = place.nanoseconds / 1e9
            headers = message.headers.raw if isinstance(message.headers, RawHeaders) else b""
            self._coming.append(Delivered(place, message.subject, message.reply, message.data, headers))
        else:
            status = message.headers or {}
            error = self._request.end(status.get("Status", ""), status.get("Description", ""))
            if error is not None:
                self._fail(error)
        self._came.set()

    async def _on_error(self, error: Exception) -> None:
        _log.info("the NATS client says", error=str(error) or type(error).__name__)
        if "permissions violation" in str(error).lower():
            self._fail(error)

    async def _on_closed(self) -> None:
        self._fail(NatsError("the connection ended"))

    def _fail(self, error: BaseException) -> None:
        self._failed = self._failed or error
        self._came.set()

    async def _report_working(self) -> None:
        """Tell the server regularly that held messages are in progress, so that it does not deliver them to others."""
        while True:
            await asyncio.sleep(self._source.ack_wait / 3)
            await self._held.report_working(self._coming)

    async def _watch_consumer(self) -> None:
        """Ask the server regularly how far the consumer has got, and what it has that is not acknowledged."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            # If the consumer is gone, or the server does not answer, keep what is known.
            with contextlib.suppress(Exception):
                try:
                    found = await self._consumer.refresh()
                except NatsError as error:
                    self._fail(error)
                    return
                self._receiver.report_unread(partial(self._find_unread, found), lambda: len(self._coming))

    def _find_unread(self, consumer: ConsumerInfo) -> dict[Place, Unread]:
        unacknowledged = consumer.num_ack_pending or 0
        delivered = 0 if consumer.delivered is None else consumer.delivered.consumer_seq
        return {
            (self._source.stream, self._source.durable): Unread(
                (consumer.num_pending or 0) + unacknowledged,
                "messages",
                oldest_at=self._newest_at,
                redelivered=consumer.num_redelivered,
                read=delivered - unacknowledged,
            )
        }

    # -- the other threads -------------------------------------------------------------------------------------------

    def _take(self, messages: list[Delivered]) -> None:
        """Hand messages over; wait while too many are not registered."""
        try:
            batch = batch_of(messages)
        except UnicodeError:
            good, letters = sorted_out(messages)
            self._receiver.store_dead_letters(letters)
            kept = {one.place.key for one in good}
            self._held.acknowledge([one.place.key for one in messages if one.place.key not in kept])
            messages = good
            if not messages:
                return
            batch = batch_of(messages)
        self._bytes_each = max(1.0, batch.nbytes / batch.num_rows)
        future = self._hand_over.submit(batch, keys_of(messages))
        future.add_done_callback(partial(self._answered, [one.place.key for one in messages]))

    def _answered(self, keys: list[str], future: Future[HandedOver]) -> None:
        """Have messages acknowledged, or note the failure. Called on the hand-over's thread."""
        error = future.exception()
        # A closed loop acknowledges nothing: the messages are delivered again, and left out by their keys.
        with contextlib.suppress(RuntimeError):
            if error is None:
                self._held.acknowledge(keys)
            else:
                self._loop.call_soon_threadsafe(self._fail, error)


def _login(source: NatsJetStream) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if source.password is not None:
        found |= {"user": source.username, "password": source.password.resolve()}
    if source.token is not None:
        found["token"] = source.token.resolve()
    if source.credentials_file is not None:
        found["user_credentials"] = source.credentials_file
    if source.tls is not None:
        found |= {"tls": client_context(source.tls), "tls_hostname": source.tls.server_hostname}
    return {name: value for name, value in found.items() if value is not None}
