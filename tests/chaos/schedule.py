"""Decide which faults a run injects, and when: a pure function of the seed and the run's shape.

It knows the name of each fault, what it needs and which faults exclude each other. It injects nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Seconds of faults in a round; then the system gets its calm and the oracle judges it. Shorter runs have one round.
ROUND_SECONDS = 300.0
# Chance that a second fault is injected while the first one lasts.
_SECOND_FAULT = 0.35
_PAUSE_SECONDS = (4.0, 14.0)


class Layout(StrEnum):
    """How the system under test is laid out."""

    ONE = "one"
    """`forebay up` with its embedded Postgres."""
    TWO = "two"
    """Agents on two hosts, Debian's Postgres with a synchronous standby, and a block store that both hosts mount."""


class Need(StrEnum):
    """What a fault needs of the machine or of the run."""

    MOUNTS = "root, to mount file systems"
    SHIM = "a C compiler, for the library that slows syncs and steps clocks"
    REPLICAS = "a store of two replicas"
    TWO_HOSTS = "the layout with two hosts"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault. Two faults on the same `resource` are never active at the same time."""

    name: str
    resource: str
    seconds: tuple[float, float] = (0.0, 0.0)
    needs: frozenset[Need] = frozenset()


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault to inject. `at` and `seconds` are relative to its round; `pick` in [0, 1) chooses among targets."""

    round: int
    at: float
    kind: str
    seconds: float
    pick: float


_ROLES = ("receiver", "agent", "tracker", "driver", "jvm", "daemon", "code-server", "webserver", "guard", "run")
_LINKS = ("http", "kafka", "target")
_TROUBLES = ("cut", "delay", "reset", "stall")


def _kinds() -> Iterator[Kind]:
    mounts, shim = frozenset({Need.MOUNTS}), frozenset({Need.SHIM})
    replicas, two = frozenset({Need.REPLICAS}), frozenset({Need.TWO_HOSTS})
    for role in (*_ROLES, "up"):
        yield Kind(f"kill-{role}", f"process {role}")
    for role in _ROLES:
        yield Kind(f"stop-{role}", f"process {role}", (3.0, 15.0))
    yield Kind("kill-postgres", "postgres")
    yield Kind("stop-postgres", "postgres", (3.0, 15.0))
    yield Kind("postgres-away", "postgres", (8.0, 20.0))
    yield Kind("postgres-full", "postgres", (8.0, 20.0), mounts)
    yield Kind("postgres-failover", "postgres", needs=two)
    yield Kind("kill-target", "target", (3.0, 10.0))
    yield Kind("kill-broker", "broker", (3.0, 10.0))
    yield Kind("store-full", "store", (10.0, 20.0), mounts)
    yield Kind("store-read-only", "store", (8.0, 20.0), mounts)
    # Longer than a segment is written to, so that a receiver notices it.
    yield Kind("store-unmounted", "store", (15.0, 25.0), mounts)
    yield Kind("store-slow", "sync", (8.0, 20.0), shim)
    for damage in ("flip", "cut", "delete"):
        yield Kind(f"block-{damage}", "blocks", needs=replicas)
    for link in _LINKS:
        for trouble in _TROUBLES:
            yield Kind(f"net-{link}-{trouble}", f"link {link}", (0.0, 0.0) if trouble == "reset" else (4.0, 12.0))
    for trouble in _TROUBLES:
        yield Kind(f"net-log-{trouble}", "link log", (0.0, 0.0) if trouble == "reset" else (4.0, 20.0), two)
    yield Kind("clock-hosts", "clock", (5.0, 20.0), shim)
    yield Kind("clock-postgres", "clock", (5.0, 20.0), shim | two)
    yield Kind("descriptors", "process receiver", (5.0, 12.0))
    yield Kind("memory", "process receiver", (5.0, 12.0))


KINDS = {kind.name: kind for kind in _kinds()}


def chosen(pattern: str) -> list[str]:
    """Return the kinds that match a comma-separated list of names or beginnings of names.

    A word after `!` leaves kinds out: ``kill,stop,!kill-jvm``. Raises ValueError for a word that matches nothing.
    """
    words = [word.strip() for word in pattern.split(",") if word.strip()]
    found = {name for name in KINDS if all(word.startswith("!") for word in words)}
    for word in words:
        matching = {name for name in KINDS if name.startswith(word.removeprefix("!"))}
        if not matching:
            raise ValueError(f"{word!r} matches no fault: use beginnings of {', '.join(KINDS)}; !NAME leaves one out")
        found = found - matching if word.startswith("!") else found | matching
    return [name for name in KINDS if name in found]


def schedule(seed: int, seconds: float, kinds: Sequence[str]) -> tuple[Planned, ...]:
    """Return the faults of a run, in order: each kind comes once before any comes again."""
    # Python guarantees that random(), and so everything derived from it here, gives the same results in each version.
    chance = random.Random(seed)
    deck: list[str] = []

    def deal(busy: str = "") -> Kind | None:
        if not any(KINDS[name].resource != busy for name in kinds):
            return None
        if not any(KINDS[name].resource != busy for name in deck):
            more = sorted(kinds)
            for last in range(len(more) - 1, 0, -1):
                other = int(chance.random() * (last + 1))
                more[last], more[other] = more[other], more[last]
            deck.extend(more)
        return KINDS[deck.pop(next(at for at, name in enumerate(deck) if KINDS[name].resource != busy))]

    def between(span: tuple[float, float]) -> float:
        return round(span[0] + chance.random() * (span[1] - span[0]), 1)

    planned: list[Planned] = []
    for number, length in enumerate(rounds(seconds)):
        at = 2.0
        while at < length and (first := deal()) is not None:
            lasts = between(first.seconds)
            planned.append(Planned(number, round(at, 1), first.name, lasts, chance.random()))
            end = at + lasts
            if chance.random() < _SECOND_FAULT and (second := deal(first.resource)) is not None:
                begins = at + chance.random() * max(lasts, 2.0)
                lasts = between(second.seconds)
                planned.append(Planned(number, round(begins, 1), second.name, lasts, chance.random()))
                end = max(end, begins + lasts)
            at = end + between(_PAUSE_SECONDS)
    return tuple(planned)


def rounds(seconds: float) -> list[float]:
    """Return the lengths of the rounds that a run of `seconds` has, all equal."""
    count = max(1, round(seconds / ROUND_SECONDS))
    return [seconds / count] * count
