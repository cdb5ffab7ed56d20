"""Hold the messages that JetStream delivered and that are not acknowledged.

This module owns the deliveries and what the server is told of them: in progress, deliver again, done. It must never
decide that a message is registered: the reader says so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nats.aio.client import Client

    from forebay_contrib.nats.records import Delivered

# JetStream's acknowledgements: in progress, deliver again, done.
_WORKING = b"+WPI"
_AGAIN = b"-NAK"
_DONE = b"+ACK"


class HeldMessages:
    """Hold messages by their keys. Only the loop's thread uses it, except that any thread may ``acknowledge``."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._held: dict[str, Delivered] = {}
        self._acknowledging: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return how many messages are held."""
        return len(self._held)

    def add(self, messages: Iterable[Delivered]) -> list[Delivered]:
        """Hold messages; return those that were not held before.

        A message that is delivered again while it waits, even before it is handed over, is stored once. Its newest
        delivery is acknowledged.
        """
        newest = {one.place.key: one for one in messages}
        fresh = [one for key, one in newest.items() if key not in self._held]
        self._held |= newest
        return fresh

    async def report_working(self, coming: Sequence[Delivered]) -> None:
        """Say that messages are in progress: those that are held, and those that come to be held."""
        for one in [*self._held.values(), *coming]:
            await self._client.publish(one.reply, _WORKING)

    async def give_back(self, messages: Sequence[Delivered]) -> None:
        """Give messages back, so that the server delivers them to another receiver at once."""
        for one in messages:
            await self._client.publish(one.reply, _AGAIN)

    def acknowledge(self, keys: Sequence[str]) -> None:
        """Have messages acknowledged, from any thread. Raises RuntimeError if the loop is closed."""
        self._loop.call_soon_threadsafe(self._begin_to_acknowledge, keys)

    async def finish_acknowledging(self) -> None:
        """Wait until the acknowledgements that have begun are sent."""
        await asyncio.gather(*self._acknowledging)

    def _begin_to_acknowledge(self, keys: Sequence[str]) -> None:
        task = asyncio.create_task(self._acknowledge(keys))
        self._acknowledging.add(task)
        task.add_done_callback(self._acknowledging.discard)

    async def _acknowledge(self, keys: Sequence[str]) -> None:
        for key in keys:
            one = self._held.pop(key, None)
            if one is not None:
                await self._client.publish(one.reply, _DONE)
