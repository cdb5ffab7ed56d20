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
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from nats.errors import NoServersError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from forebay_contrib.nats.client import RawHeaders, TolerantClient
from forebay_contrib.nats.records import Delivered, StreamPlace, batch_of, keys_of, sorted_out
from receiver_runtime.receivers.keyed_hand_over import HandOverClosedError, KeyedHandOver
from receiver_runtime.receivers.tcp import client_context

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from datetime import datetime

    from nats.aio.msg import Msg
    from nats.js.api import ConsumerInfo

    from forebay_contrib.nats.declaration import NatsJetStream
    from forebay_contrib.nats.session import KnownConsumer
    from receiver_runtime.receivers.keyed_hand_over import HandedOver
    from receiver_runtime.supervisor.receiver import Receiver

_log = structlog.get_logger(__name__)

# Messages of one request, at most and at least, and how long a request is open.
_MOST_MESSAGES = 5_000
_LEAST_MESSAGES = 10
_REQUEST_SECONDS = 1.0
# Bytes of a message, at most, besides what the server counts as its payload.
_ENVELOPE_BYTES = 64 * 1024
# How long to gather messages after the first one; they are handed over together.
_GATHERING_SECONDS = 0.005
# How long to wait for room to read more, and after a request that brought nothing.
_PAUSE_SECONDS = 0.02
# Batches, at most, that are handed over and not registered yet.
_MOST_UNDER_WAY = 16
# JetStream's acknowledgements: in progress, deliver again, done.
_WORKING = b"+WPI"
_AGAIN = b"-NAK"
_DONE = b"+ACK"
_RECONNECT_SECONDS = 1  # between two attempts to connect to the same server
_CLOSING_SECONDS = 2.0  # how long sending the last acknowledgements, and then closing, may take


class NatsError(ConnectionError):
    """NATS ended the connection, or what was asked of it."""


class NatsReader:
    """Read messages; see the module. Call ``start`` and ``stop`` once."""

    def __init__(self, receiver: Receiver, source: NatsJetStream, known: KnownConsumer) -> None:
        self._receiver = receiver
        self._supervisor = receiver.supervisor
        self._source = source
        self._known = known
        self._hand_over = KeyedHandOver(self._supervisor, most_in_flight=_MOST_UNDER_WAY)
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"nats {source.durable}", daemon=True)
        # Only the event loop's thread uses these.
        self._loop: asyncio.AbstractEventLoop
        self._client = TolerantClient()
        self._coming: list[Delivered] = []
        self._came = asyncio.Event()
        self._request_left = 0
        self._requested = 0
        self._most_bytes = 0
        self._acknowledging: set[asyncio.Task[None]] = set()
        self._held: dict[str, Delivered] = {}
        self._bytes_each = 1000.0
        self._failed: BaseException | None = None

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
        pool = ThreadPoolExecutor(1, thread_name_prefix=f"nats {self._source.durable} blocks")
        working = None
        try:
            inbox = await self._open()
            self._receiver.report_connected(self._source.address)
            working = asyncio.create_task(self._report_working())
            with contextlib.suppress(HandOverClosedError):
                while not self._stopping.is_set():
                    await self._step(inbox, pool)
            await self._loop.run_in_executor(None, self._settled.wait)
            await asyncio.gather(*self._acknowledging)
            await self._give_back(self._coming)
            await self._client.flush(timeout=max(1, round(_CLOSING_SECONDS)))
        finally:
            if working is not None:
                working.cancel()
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
                **self._login(),
            )
        except NoServersError as error:
            raise NatsError(f"no server of {source.servers} can be reached: {self._client.last_error}") from error
        jetstream = self._client.jetstream(timeout=source.connect_timeout)
        about = await jetstream.stream_info(source.stream)
        try:
            consumer = await jetstream.consumer_info(source.stream, source.durable)
        except NotFoundError:
            policy, first = self._where_to_begin(about.created)
            consumer = await jetstream.add_consumer(
                source.stream,
                ConsumerConfig(
                    name=source.durable,
                    durable_name=source.durable,
                    deliver_policy=policy,
                    opt_start_seq=first,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=source.ack_wait,
                    max_ack_pending=source.in_flight,
                    filter_subject=source.subject,
                ),
            )
        self._check(consumer.config)
        read = consumer.delivered.stream_seq if consumer.delivered is not None else 0
        self._note(about.created, consumer)
        state = about.state
        if source.subject is None and 0 < read < state.first_seq - 1:
            self._receiver.report_error(
                f"{source.stream}: messages {read + 1} up to {state.first_seq - 1}, {state.first_seq - 1 - read} of "
                "them, are gone from the stream and were never read: they are lost"
            )
        inbox = self._client.new_inbox()
        await self._client.subscribe(inbox, cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1)
        return inbox

    def _check(self, config: ConsumerConfig) -> None:
        """Check the settings of the consumer, which someone else may have created. Raises NatsError."""
        name = f"the consumer {self._source.durable!r} of {self._source.stream!r}"
        policy = str(getattr(config.ack_policy, "value", config.ack_policy))
        if policy != AckPolicy.EXPLICIT.value:
            # With 'none' the server forgets a message once it is sent. With 'all' an acknowledgement also covers all
            # messages before it, even those that another receiver has.
            raise NatsError(
                f"{name} has ack_policy {policy!r}, by which messages are lost: create it with 'explicit', or give "
                "another durable"
            )
        if config.deliver_subject:
            raise NatsError(
                f"{name} is a push consumer, which takes no requests: create it without deliver_subject, or give "
                "another durable"
            )

        filters = [*(config.filter_subjects or []), *([config.filter_subject] if config.filter_subject else [])]
        if self._source.subject is not None and filters != [self._source.subject]:
            raise NatsError(
                f"{name} reads {', '.join(filters) or 'each subject'}, and not {self._source.subject!r}, which was "
                "declared: give another durable, or delete the consumer"
            )

    def _where_to_begin(self, made: datetime | None) -> tuple[DeliverPolicy, int | None]:
        """Return where a new consumer begins: as declared, or where the consumer that is gone had got to."""
        source, known = self._source, self._known
        if known.made is None:
            return (DeliverPolicy.ALL if source.start == "earliest" else DeliverPolicy.NEW), None
        is_same = made == known.made
        begins = f"after message {known.acknowledged}" if is_same else "with the oldest message of the new stream"
        self._receiver.report_error(
            f"the consumer {source.durable!r} of {source.stream!r} was gone; it is created again, and begins {begins}"
        )
        return (DeliverPolicy.BY_START_SEQUENCE, known.acknowledged + 1) if is_same else (DeliverPolicy.ALL, None)

    def _note(self, made: datetime | None, consumer: ConsumerInfo) -> None:
        places = [consumer.ack_floor, consumer.delivered if consumer.num_ack_pending == 0 else None]
        through = max((place.stream_seq for place in places if place is not None), default=0)
        # A consumer that has just begun in the middle of the stream may not report its position yet.
        before = self._known.acknowledged if made == self._known.made else 0
        self._known.made, self._known.acknowledged = made, max(through, before)

    def _login(self) -> dict[str, Any]:
        source = self._source
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

    async def _step(self, inbox: str, pool: ThreadPoolExecutor) -> None:
        """Request messages if no request is open, and hand over what came."""
        if not self._coming:
            await self._wait_for_messages(inbox)
        messages, self._coming = self._coming, []
        # A message that is delivered again while it waits here, even before it is handed over, is stored once. Its
        # newest delivery is acknowledged.
        newest = {one.place.key: one for one in messages}
        fresh = {key: one for key, one in newest.items() if key not in self._held}
        self._held |= newest
        if fresh:
            try:
                await self._loop.run_in_executor(pool, self._take, list(fresh.values()))
            except HandOverClosedError:
                await self._give_back(list(fresh.values()))
                raise

    async def _wait_for_messages(self, inbox: str) -> None:
        """Wait until messages came, or their request is over. Raises the reason if none will come."""
        room = self._source.in_flight - len(self._held)
        if room <= 0:
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            if self._request_left <= 0:
                await self._ask(inbox, room)
            try:
                await asyncio.wait_for(self._came.wait(), _REQUEST_SECONDS + self._source.connect_timeout)
            except TimeoutError:
                # The server must end each request with a status message.
                raise NatsError(f"the server did not answer for {self._source.connect_timeout:g} s") from None
            self._came.clear()
            if self._request_left > 0:
                await asyncio.sleep(_GATHERING_SECONDS)
            elif not self._coming:
                # The server may end every request at once: pause between them.
                await asyncio.sleep(_PAUSE_SECONDS)
        if self._failed is not None:
            raise self._failed

    async def _ask(self, inbox: str, room: int) -> None:
        most = int(self._supervisor.settings.max_block_bytes / self._bytes_each)
        most = self._supervisor.block_path.piece(min(room, max(_LEAST_MESSAGES, min(_MOST_MESSAGES, most))), 0)
        self._request_left = self._requested = most
        # The first messages of a request for many may be large: always leave room for one of the largest size.
        self._most_bytes = max(
            self._most_bytes, self._supervisor.settings.max_block_bytes, self._client.max_payload + _ENVELOPE_BYTES
        )
        request = {"batch": most, "expires": int(_REQUEST_SECONDS * 1e9), "max_bytes": self._most_bytes}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._source.stream}.{self._source.durable}"
        await self._client.publish(subject, json.dumps(request).encode(), reply=inbox)

    async def _on_message(self, message: Msg) -> None:
        place = StreamPlace.of(message.reply)
        if place is not None:
            self._request_left -= 1
            headers = message.headers.raw if isinstance(message.headers, RawHeaders) else b""
            self._coming.append(Delivered(place, message.subject, message.reply, message.data, headers))
        else:
            came, self._request_left = self._requested - self._request_left, 0
            status = (message.headers or {}).get("Status", "")
            said = (message.headers or {}).get("Description", "")
            # 404 and 408: there are no messages; 409: the request is over, for example by a change of leaders.
            if status == "503":
                self._fail(NatsError(f"there is no consumer {self._source.durable!r} of {self._source.stream!r} now"))
            elif "Exceeds MaxBytes" in said and not came:
                # The message was stored when the server's limit for payloads was higher.
                self._most_bytes *= 2
            elif status not in ("404", "408", "409") or "Deleted" in said or "Exceeded MaxRequest" in said:
                self._fail(NatsError(f"{status} {said}".strip() or "the server refused to deliver messages"))
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
            for one in [*self._held.values(), *self._coming]:
                await self._client.publish(one.reply, _WORKING)
            # If the consumer is gone, or the server does not answer, keep what is known.
            with contextlib.suppress(Exception):
                source = self._source
                jetstream = self._client.jetstream(timeout=source.connect_timeout)
                self._note(self._known.made, await jetstream.consumer_info(source.stream, source.durable))

    async def _give_back(self, messages: Sequence[Delivered]) -> None:
        """Give messages back, so that the server delivers them to another receiver at once."""
        for one in messages:
            await self._client.publish(one.reply, _AGAIN)

    def _begin_to_acknowledge(self, keys: Sequence[str]) -> None:
        task = asyncio.create_task(self._acknowledge(keys))
        self._acknowledging.add(task)
        task.add_done_callback(self._acknowledging.discard)

    async def _acknowledge(self, keys: Sequence[str]) -> None:
        for key in keys:
            one = self._held.pop(key, None)
            if one is not None:
                await self._client.publish(one.reply, _DONE)

    # -- the other threads -------------------------------------------------------------------------------------------

    def _take(self, messages: list[Delivered]) -> None:
        """Hand messages over; wait while too many are not registered."""
        try:
            batch = batch_of(messages)
        except UnicodeError:
            good, letters = sorted_out(messages)
            self._receiver.store_dead_letters(letters)
            kept = {one.place.key for one in good}
            self._request_acknowledgement([one.place.key for one in messages if one.place.key not in kept])
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
                self._request_acknowledgement(keys)
            else:
                self._loop.call_soon_threadsafe(self._fail, error)

    def _request_acknowledgement(self, keys: list[str]) -> None:
        self._loop.call_soon_threadsafe(self._begin_to_acknowledge, keys)
