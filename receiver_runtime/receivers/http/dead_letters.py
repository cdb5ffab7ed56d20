"""Store the dead letters of requests, in threads, because that may wait for the driver log or the disk.

This module owns which requests have stored theirs and are not registered yet: a repeat of one stores nothing again. It
must never hand in records.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.receivers.http.requests.pushed import MOST_REJECTED
from receiver_runtime.receivers.http.requests.refusals import RefusedError, refusal

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from receiver_runtime.receivers.http.acknowledgement import WaitingRequest
    from receiver_runtime.receivers.http.admission import Admission
    from receiver_runtime.receivers.http.requests.pushed import Pushed, PushedRows
    from receiver_runtime.receivers.http.requests.records import Plain
    from receiver_runtime.supervisor.receiver import Receiver

_WORKERS = 2  # threads that store dead letters, which are rare


class RequestDeadLetters:
    """Hold what is being stored. All methods except ``close`` belong to the server's loop.

    Args:
        in_time: refuses the request in whose context storing takes too long, or fails.
    """

    def __init__(
        self, receiver: Receiver, admission: Admission, in_time: Callable[[], AbstractAsyncContextManager[None]]
    ) -> None:
        self._receiver = receiver
        self._supervisor = receiver.supervisor
        self._admission = admission
        self._in_time = in_time
        self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="http dead letters")
        # The storing of a request's dead letters by its key, until the request is registered.
        self._asides: dict[str, asyncio.Future[None]] = {}

    def close(self) -> None:
        """End the threads. The loop must have ended."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def store(self, parsed: Pushed | PushedRows | Plain, waiting: WaitingRequest) -> tuple[int, str]:
        """Store the dead letters; return how many there are, and the reason of the first one.

        They are stored before the request is answered, and before its records are registered: a request whose key is
        known has stored its dead letters already.
        """
        if not parsed.rejected:
            return 0, ""
        if len(parsed.rejected) > MOST_REJECTED:
            raise refusal(
                HTTPStatus.BAD_REQUEST,
                f"body: {len(parsed.rejected)} can't be records, {MOST_REJECTED} are put aside at most; "
                f"{parsed.rejected[0].why}: correct it, or send less at once",
            )
        letters = [DeadLetter(one.reason, one.data) for one in parsed.rejected if one.data]
        # What waits for its dead letters takes memory as what waits for its registration does.
        held = waiting.nbytes + sum(len(letter.data) for letter in letters)
        if (too_much := self._admission.check_room(held)) is not None:
            raise RefusedError(too_much)
        forms = waiting.key_forms()
        key = forms[0] if forms else None

        def put_aside() -> None:
            if key is None or not self._supervisor.block_path.known_keys(forms):
                self._receiver.store_dead_letters(letters)

        async with self._in_time():
            if key is None:
                await self._begin(put_aside, held)
            elif not await self._is_aside(key):
                job = self._begin(put_aside, held)
                self._asides[key] = job
                waiting.on_settled = partial(self._asides.pop, key, None)
                # Runs before any repeat of the request resumes.
                job.add_done_callback(partial(self._on_aside, key))
                await job
        if not waiting.bodies and waiting.on_settled is not None:
            waiting.on_settled()
        return len(parsed.rejected), parsed.rejected[0].why

    def _begin(self, put_aside: Callable[[], None], held: int) -> asyncio.Future[None]:
        """Store dead letters in a thread. What they hold is counted until then, whether or not the request waits."""
        self._admission.count_body_bytes(held)
        job = self._threads.submit(put_aside)
        job.add_done_callback(lambda _: self._admission.count_body_bytes(-held))
        return asyncio.wrap_future(job)

    async def _is_aside(self, key: str) -> bool:
        """Return whether a request with this key, not registered yet, has stored its dead letters."""
        while (earlier := self._asides.get(key)) is not None:
            await asyncio.wait([earlier])
            if self._asides.get(key) is earlier:
                return True
        return False

    def _on_aside(self, key: str, job: asyncio.Future[None]) -> None:
        if job.cancelled() or job.exception() is not None:
            self._asides.pop(key, None)
