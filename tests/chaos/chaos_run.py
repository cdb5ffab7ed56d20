"""One run: scheduled faults, a calm after each round, and the oracle's verdict."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg2

from tests.chaos import faults, ledger, oracle
from tests.chaos.oracle import DriverLog, ParquetReader, Violation
from tests.chaos.proxies import Mode
from tests.chaos.schedule import rounds, schedule
from tests.chaos.status_polls import StatusPolls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.chaos.faults import Injected
    from tests.chaos.schedule import Planned
    from tests.chaos.status_polls import Poll
    from tests.chaos.system import System

_TICK = 0.1  # seconds between two looks at the schedule
_POLL_SECONDS = 2.0
_FLOW_SECONDS = 300.0
_MOST_PATIENCE = 4.0  # the largest factor by which a loaded machine extends waits
# Load per core. From here on, a process may miss work that it does every few seconds.
_CROWDED = 2.0
# Regular expressions, by the beginning of a fault's kind: `status` or an event must match it while the fault lasts.
_NAMES: Mapping[str, str] = {
    "store-unmounted": r"not mounted",
    "store-full": r"No space left",
    "store-read-only": r"[Rr]ead-only",
    "block-": r"damaged|checksum|corrupt|lags|missing|replica",
    "postgres-away": r"driver log|Postgres",
}
# Operators must learn of these faults in any case; of the others only if anything was read or written meanwhile.
_MUST_BE_NAMED = ("store-unmounted",)


@dataclass(slots=True)
class Done:
    """A fault that was injected, or why it was not."""

    planned: Planned
    hit: str
    begun: float
    ended: float = 0.0
    skipped: bool = False
    named: bool | None = None
    must_be_named: bool = False


@dataclass(slots=True)
class Report:
    """The parameters of a run and what it found."""

    seed: int
    layout: str
    replicas: int
    minutes: float
    done: list[Done] = field(default_factory=list)
    violations: list[tuple[int, Violation]] = field(default_factory=list)
    calms: list[float] = field(default_factory=list)
    records: dict[str, dict[str, int]] = field(default_factory=dict)
    batches: int = 0
    status: dict[str, float] = field(default_factory=dict)
    longest_answers: dict[str, float] = field(default_factory=dict)
    restarts: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def by_kind(self) -> dict[str, Counter[str]]:
        """Count faults by kind: injected, skipped, named."""
        found: dict[str, Counter[str]] = {}
        for done in self.done:
            counts = found.setdefault(done.planned.kind, Counter())
            counts["skipped" if done.skipped else "injected"] += 1
            counts["named"] += done.named is True
        return dict(sorted(found.items()))

    def json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            **{name: getattr(self, name) for name in ("seed", "layout", "replicas", "minutes", "batches", "status")},
            "seconds": round(self.seconds, 1),
            "calm_seconds": [round(seconds, 1) for seconds in self.calms],
            "faults": {kind: dict(counts) for kind, counts in self.by_kind().items()},
            "timeline": [
                {**asdict(done.planned), "hit": done.hit, "skipped": done.skipped, "named": done.named}
                for done in self.done
            ],
            "status_longest_by_fault": self.longest_answers,
            "records": self.records,
            "restarts": self.restarts,
            "violations": [{"round": number, **asdict(violation)} for number, violation in self.violations],
        }


def _patience() -> float:
    """Return the factor by which waits are extended when other processes keep every core busy."""
    return min(_MOST_PATIENCE, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


class ChaosRun:
    """A run on a system that has started. `say` shows a line to the person who watches."""

    def __init__(
        self,
        system: System,
        report: Report,
        kinds: Sequence[str],
        *,
        calm_seconds: float,
        status_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._system = system
        self._report = report
        self._kinds = kinds
        self._calm_seconds = calm_seconds
        self._status_seconds = status_seconds
        self._say = say
        self._begun = time.monotonic()
        self._active: dict[int, tuple[float, Injected, Done]] = {}
        self._seen = ParquetReader(system.output / "seen")
        self._windows = ParquetReader(system.output / "window")
        self._totals = ParquetReader(system.output / "totals")
        self._known: set[Violation] = set()
        self._round = 0

    def run(self) -> None:
        """Run all rounds; violations are in the report afterwards."""
        planned = schedule(self._report.seed, self._report.minutes * 60, self._kinds)
        lengths = rounds(self._report.minutes * 60)
        with StatusPolls(self._system.status_environment()) as polls:
            try:
                self._flow()
                for number, length in enumerate(lengths):
                    self._round = number
                    self._faults([each for each in planned if each.round == number], length)
                    self._calm()
                    self._judge_round()
            finally:
                self._heal_all()
                self._judge_status(polls.polls)
                self._name_faults(polls.polls)
                self._count()

    # -- faults ------------------------------------------------------------------------------------------------------

    def _flow(self) -> None:
        """Send until records of each source are committed: then Spark is warm, and faults hit a working system."""
        for sender in self._system.senders:
            sender.send()
        begun = time.monotonic()
        while {source for source, _ in oracle.records(self._seen.rows())} < set(oracle.OUTPUTS["seen"]):
            if time.monotonic() > begun + _FLOW_SECONDS * _patience():
                self._violated(Violation("liveness", f"no record of each source within {_FLOW_SECONDS:g} s of start"))
                return
            time.sleep(_POLL_SECONDS)

    def _faults(self, planned: Sequence[Planned], length: float) -> None:
        for sender in self._system.senders:
            sender.send()
        begun = time.monotonic()
        coming = sorted(planned, key=lambda each: each.at)
        while coming or self._active or time.monotonic() < begun + length:
            now = time.monotonic()
            for key in [key for key, (until, _, _) in self._active.items() if until <= now]:
                self._heal(key)
            if coming and begun + coming[0].at <= now:
                self._inject(coming.pop(0))
            time.sleep(_TICK)

    def _inject(self, planned: Planned) -> None:
        now = time.monotonic()
        done = Done(planned, "", now)
        self._report.done.append(done)
        try:
            injected = faults.inject(self._system, planned)
        except faults.UnavailableError as error:
            done.hit, done.skipped = str(error), True
            self._say(f"{self._clock()} {planned.kind}: left out: {error}")
            return
        done.hit = injected.hit
        done.must_be_named = planned.kind in _MUST_BE_NAMED and self._affects_receivers(injected.hit)
        self._say(f"{self._clock()} {planned.kind} for {planned.seconds:g} s: {injected.hit}")
        self._active[len(self._report.done)] = (now + planned.seconds, injected, done)

    def _affects_receivers(self, hit: str) -> bool:
        """Return whether receivers write on the host that a store fault hit, and other load does not delay them."""
        try:
            hosts = DriverLog(self._system.log_dsn()).hosts_with_receivers()
        except (OSError, psycopg2.Error):
            return False
        host = hit.partition(":")[0]
        points = list(self._system.store_points())
        # The first host runs `forebay up`; its receivers report the machine's own host name.
        is_hit = bool(hosts.difference(points)) if host == points[0] else host in hosts
        return is_hit and _patience() < _CROWDED

    def _heal(self, key: int) -> None:
        _, injected, done = self._active.pop(key)
        injected.heal()
        done.ended = time.monotonic()

    def _heal_all(self) -> None:
        for key in list(self._active):
            with contextlib.suppress(Exception):
                self._heal(key)

    # -- calm and judgement ------------------------------------------------------------------------------------------

    def _calm(self) -> None:
        """Let everything settle, or report what does not settle."""
        self._heal_all()
        for proxy in self._system.proxies.values():
            proxy.set(Mode.PASS)
        for sender in self._system.senders:
            sender.pause()
        begun = time.monotonic()
        while True:
            left = self._left()
            seconds = time.monotonic() - begun
            if not left:
                self._report.calms.append(seconds)
                self._say(f"{self._clock()} round {self._round + 1}: all committed after {seconds:.0f} s of calm")
                return
            if seconds > self._calm_seconds * _patience():
                for violation in left:
                    self._violated(violation)
                return
            time.sleep(_POLL_SECONDS)

    def _left(self) -> list[Violation]:
        """Return what has not settled yet."""
        unsettled = [
            Violation("liveness", f"{sender.unsettled()} records of {sender.source} are not acknowledged")
            for sender in self._system.senders
            if sender.unsettled()
        ]
        try:
            waiting = DriverLog(self._system.log_dsn()).not_at_rest()
        except (OSError, psycopg2.Error) as error:
            waiting = [f"the driver log does not answer: {error}"]
        found = unsettled + [Violation("liveness", text) for text in waiting]
        return found or self._missing()

    def _missing(self) -> list[Violation]:
        told = ledger.read(self._system.ledgers)
        try:
            table = oracle.table_records(self._system.target.dsn("target"))
        except psycopg2.Error as error:
            return [Violation("liveness", f"the outputs' server does not answer: {error}")]
        return [
            *oracle.missing("seen", told, oracle.records(self._seen.rows())),
            *oracle.missing("delivered", told, table),
        ]

    def _judge_round(self) -> None:
        told = ledger.read(self._system.ledgers)
        seen = self._seen.rows()
        found = [
            *oracle.too_many("seen", told, oracle.records(seen)),
            *oracle.wrong_windows(seen, self._windows.rows()),
            *oracle.wrong_totals(seen, self._totals.rows()),
        ]
        with contextlib.suppress(psycopg2.Error):
            found += oracle.too_many("delivered", told, oracle.table_records(self._system.target.dsn("target")))
            found += oracle.wrong_event_windows(oracle.event_windows(self._system.target.dsn("target")))
        with contextlib.suppress(OSError, psycopg2.Error):
            found += [Violation("given up", text) for text in DriverLog(self._system.log_dsn()).given_up()]
        found += [Violation("wrong disk", text) for text in self._system.wrong_disk]
        for sender in self._system.senders:
            found += [Violation("refused", f"{sender.source}: {text}") for text in sender.refusals]
        for violation in found:
            self._violated(violation)

    def _judge_status(self, polls: Sequence[Poll]) -> None:
        if not polls:
            return
        times = [poll.seconds for poll in polls]
        # If other processes keep every core busy, a process takes that much longer to start and to answer.
        slow = [poll for poll in polls if poll.code is None or poll.seconds > self._status_seconds * max(1, poll.load)]
        unclear = [poll for poll in polls if poll.code is not None and not poll.is_clear]
        self._report.longest_answers = self._longest_answers(polls)
        self._report.status = {
            "polls": len(polls),
            "median_seconds": round(statistics.median(times), 2),
            "longest_seconds": round(max(times), 2),
            "slower_than_limit": len(slow),
            "limit_seconds": self._status_seconds,
            "load_per_core": round(max(poll.load for poll in polls), 2),
        }
        if slow:
            longest = max(slow, key=lambda poll: poll.seconds)
            there = ", ".join(self._at(longest.at)) or "none"
            self._violated(
                Violation(
                    "status",
                    f"{len(slow)} of {len(polls)} answers took longer than {self._status_seconds:g} s times load per "
                    f"core, the longest {longest.seconds:.1f} s (load {longest.load}, fault {there})",
                )
            )
        if unclear:
            self._violated(Violation("status", f"{len(unclear)} answers say nothing clear: {unclear[0].said[-500:]}"))

    def _at(self, moment: float) -> list[str]:
        """Return the kinds of the faults that were active at a moment, or had just ended."""
        return [
            done.planned.kind
            for done in self._report.done
            if not done.skipped and done.begun - 1 <= moment <= (done.ended or done.begun) + 15
        ]

    def _longest_answers(self, polls: Sequence[Poll]) -> dict[str, float]:
        """Return the longest `status` answer in seconds by kind of fault that was active when it was asked."""
        longest: dict[str, float] = {}
        for poll in polls:
            for kind in self._at(poll.at) or ["none"]:
                longest[kind] = max(longest.get(kind, 0.0), round(poll.seconds, 2))
        return dict(sorted(longest.items()))

    def _name_faults(self, polls: Sequence[Poll]) -> None:
        """Check that `status` or an event named each fault."""
        try:
            said = DriverLog(self._system.log_dsn()).said()
        except (OSError, psycopg2.Error):
            said = []
        unnamed: Counter[str] = Counter()
        for done in self._report.done:
            words = next((words for kind, words in _NAMES.items() if done.planned.kind.startswith(kind)), None)
            if words is None or done.skipped:
                continue
            meanwhile = [poll.said for poll in polls if done.begun <= poll.at <= (done.ended or done.begun) + 30]
            done.named = any(re.search(words, text) for text in [*meanwhile, *said])
            if not done.named and done.must_be_named:
                unnamed[done.planned.kind] += 1
        for kind, count in unnamed.items():
            self._violated(
                Violation("unnamed", f"{kind}: {count} times neither status nor an event says {_NAMES[kind]!r}")
            )

    def _count(self) -> None:
        told = ledger.read(self._system.ledgers)
        out = {"seen": oracle.records(self._seen.rows())}
        with contextlib.suppress(psycopg2.Error):
            out["delivered"] = oracle.table_records(self._system.target.dsn("target"))
        for source, each in told.items():
            self._report.records[source] = {
                "sent": len(each.sent),
                "acknowledged": len(each.acknowledged),
                **{
                    output: sum(1 for name, _ in records if name == source)
                    for output, records in out.items()
                    if source in oracle.OUTPUTS[output]
                },
            }
        with contextlib.suppress(OSError, psycopg2.Error):
            self._report.batches = DriverLog(self._system.log_dsn()).batches()
        self._report.restarts = [text for service in self._system.services for text in service.restarts]
        self._report.seconds = time.monotonic() - self._begun

    def _violated(self, violation: Violation) -> None:
        if violation in self._known:
            return
        self._known.add(violation)
        self._report.violations.append((self._round + 1, violation))
        self._say(f"{self._clock()} VIOLATION {violation.kind}: {violation.text}")

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        return f"{minutes:02}:{seconds:02}"
