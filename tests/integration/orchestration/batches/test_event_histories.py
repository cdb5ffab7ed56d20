"""Test outputs by event time, and what their targets have, against a model over random histories with faults.

Batches run on real local Spark through the real run: blocks, driver log, state, Postgres and Parquet. They are killed
at each step of a sink and around each statement, launched again, quarantined, discarded, followed, replayed, replayed
forward and back, and cleaned up; a receiver may be idle, and the stream gets columns. When all has calmed down, each
target has what the records of the batches that count make, and each version the watermark of the model.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from forebay import EnvVar, EventWindow, ParquetSink, Pipeline, PostgresSink, SessionWindow
from orchestration.batches.attempt_outputs import OutputsFailedError
from orchestration.batches.following import follow_output, follow_targets
from orchestration.batches.stateful.state_run import StateWaitsError
from orchestration.declarations.sink import Step
from orchestration.spark import statement_retry
from orchestration.state.state_folder import delete_folder
from receiver_runtime.block_store.stores.stores import open_block_store
from tests.support.driver_log.attempts import fail_batch
from tests.support.spark.event_model import Batch, Click, Sessions, Watermark, Windows
from tests.support.spark.event_rig import HOUR, EventRig, stream
from tracker_store.batches import batches, outputs, state_replays, state_versions
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import (
    AttemptSupersededError,
    BatchHeldError,
    BlocksNotRetainedError,
    DriverLogError,
    OutcomeUnknownError,
    StatefulReplayError,
    StateMovedError,
)
from tracker_store.retention.state_files import forget_state_version, state_versions_to_delete
from tracker_store.schema.states import AttemptFailure, StateReplayState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from forebay.testing.postgres import TestServer
    from tests.integration.orchestration.target_database import Target

pytestmark = pytest.mark.spark

MINUTE = timedelta(minutes=1)
LATENESS, IDLE = 10, 3  # minutes, batches
LENGTH, SLIDE, GAP = 20, 10, 15  # minutes
OUTPUTS = ("sums", "sums_late", "sessions", "final")
#: In front of a statement, and after it, its process is killed; `lost`: its answer is.
STATEMENTS = ("begin_version", "note_version", "commit_output")
STEPS = [
    *(f"{name} {when}" for name in STATEMENTS for when in ("before", "after", "lost")),
    *(str(step.value) for step in Step),
    "publishing",
]
LEGAL = (
    StateWaitsError,
    StateMovedError,
    StatefulReplayError,
    AttemptSupersededError,
    BatchHeldError,
    BlocksNotRetainedError,
    OutputsFailedError,
)
AGES = timedelta(hours=2)
WINDOW = timedelta(hours=1)


class KilledError(BaseException):
    """Ends a run as a kill does: nothing is recorded."""


@dataclass
class Fault:
    """What happens next, and where: at the step that is reached after `others` more of its kind. It happens once."""

    step: str = ""
    others: int = 0

    def at(self, step: str) -> bool:
        """Return whether it is here."""
        if self.step != step:
            return False
        self.others -= 1
        if self.others >= 0:
            return False
        self.step = ""
        return True

    def kill(self, step: str) -> None:
        """End the run if it is to die here."""
        if self.at(step):
            raise KilledError


FAULT = Fault()


class Table(PostgresSink):
    """A table at which runs die."""

    def reached(self, step: Step) -> None:
        FAULT.kill(step.value)


class Files(ParquetSink):
    """Files at which runs die."""

    def reached(self, step: Step) -> None:
        FAULT.kill(step.value)

    def publish(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401
        FAULT.kill("publishing")
        super().publish(*arguments, **named)


def _faulty(name: str, real: Callable[..., None]) -> Callable[..., None]:
    def statement(*arguments: object, **named: object) -> None:
        FAULT.kill(f"{name} before")
        real(*arguments, **named)
        FAULT.kill(f"{name} after")
        if FAULT.at(f"{name} lost"):
            raise OutcomeUnknownError("the connection was lost")

    return statement


def summed(clicks: DataFrame, *by: str) -> DataFrame:
    return clicks.groupBy("user", "window_start", *by).sum("pages").withColumnRenamed("sum(pages)", "pages")


@dataclass
class History:
    """A pipeline with a driver log, a block store and targets, and the records of its batches."""

    rig: EventRig
    target: Target
    folder: Path
    session: SparkSession
    on_failure: Any
    received: dict[datetime, Mapping[int, list[Click]]] = field(default_factory=dict)
    columns: int = 0
    relaunch: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        """Declare the pipeline."""
        clicks = stream("clicks", receivers=2)
        pipeline = Pipeline("visits", interval="1h", max_attempts=50)
        timed = clicks.by_event_time("at", lateness=f"{LATENESS}m", idle=f"{IDLE}h")
        windows = EventWindow(f"{LENGTH}m", slide=f"{SLIDE}m", on_failure=self.on_failure)
        url = EnvVar("TARGET_URL")
        pipeline.output(
            inputs=[timed],
            window=windows,
            sink=Table(url, "sums", mode="merge", key=["window_start", "user"]),
            late=Files(self.folder / "sums_late"),
            name="sums",
        )(summed)
        pipeline.output(
            inputs=[timed],
            window=SessionWindow(f"{GAP}m", key="user", on_failure=self.on_failure),
            sink=Table(url, "sessions", mode="merge", key=["user", "window_start"]),
            name="sessions",
        )(lambda clicks: summed(clicks, "window_end"))
        pipeline.output(inputs=[timed], window=windows, sink=Files(self.folder / "final"), name="final")(summed)
        self.rig.apply(pipeline)
        self.connection = self.rig.connection
        self.connection.execute(sa.text("UPDATE forebay.pipelines SET retention = interval '1 year'"))
        self.id, self.begin = self.rig.id, self.rig.begin

    # -- what happens --------------------------------------------------------------------------------------------------

    def unfinished(self) -> tuple[Any, ...] | None:
        return next((b for b in self.rig.batches() if b[1] in ("ALLOCATED", "RUNNING", "FAILED", "BLOCKED")), None)

    def running(self) -> list[Any]:
        return list(
            self.connection.execute(
                sa.text(
                    "SELECT batch_time, attempt, run_id FROM forebay.batch_attempts "
                    "WHERE pipeline_id = :p AND state = 'RUNNING'"
                ),
                {"p": self.id},
            )
        )

    def launch(self, run: Callable[[], object], step: str, others: int) -> bool:
        """Run until the fault; return whether it came to its end. What ended by a kill can be launched again."""
        FAULT.step, FAULT.others = step, others
        self.relaunch = None
        try:
            run()
        except KilledError:
            self.relaunch = lambda: self.launch(run, "", 0)
            return False
        except LEGAL:
            return False
        finally:
            FAULT.step = ""
        return True

    def allocate(self, clicks: Mapping[int, list[Click]]) -> None:
        """Receive records, and allocate them to the next batch."""
        if self.unfinished() is not None:
            return
        more = [(f"more{number}", pa.string()) for number in range(self.columns)]
        schema = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC")), ("pages", pa.int64()), *more])
        for receiver, each in clicks.items():
            rows = [
                {
                    "user": click.user,
                    "at": None if click.at is None else self.begin + click.at * MINUTE,
                    "pages": click.pages,
                    **{name: "x" for name, _ in more},
                }
                for click in each
            ]
            if rows:
                self.rig.receive("clicks", rows, schema, receiver=receiver)
        time = self.rig.allocate(len(self.received) + 1)
        self.received[time] = clicks

    def run(self, step: str = "", others: int = 0) -> None:
        batch = self.unfinished()
        if batch is None or batch[1] == "RUNNING":
            return
        self.connection.execute(sa.text("UPDATE forebay.batches SET retry_at = NULL"))
        time, number = batch[0], batch[2] + 1
        run_id = self.rig.run_id()
        self.launch(lambda: self.rig.run(time, number, run_id=run_id, session=lambda: self.session), step, others)

    def replay(self, time: datetime, output: str, step: str, others: int, **options: Any) -> bool:  # noqa: ANN401
        run_id = self.rig.run_id()
        chosen = [output] if output else []

        def go() -> None:
            self.rig.replay(time, *chosen, run_id=run_id, session=lambda: self.session, **options)

        return self.launch(go, step, others)

    def bury(self, *, quarantines: bool) -> None:
        """End what was killed, as the tracker does."""
        self.relaunch = None
        for attempt in self.running():
            fail_batch(
                self.connection,
                self.id,
                attempt.batch_time,
                attempt.attempt,
                run_id=attempt.run_id,
                error="killed",
                max_attempts=50,
                pauses=None,
                failure=AttemptFailure.LOST,
                max_lost_attempts=1 if quarantines else 50,
            )

    def quarantined(self) -> list[datetime]:
        return [batch[0] for batch in self.rig.batches() if batch[1] == "QUARANTINED"]

    def discard(self, pick: int) -> None:
        if chosen := self.quarantined():
            try:
                batches.discard_batch(self.connection, pipeline_id=self.id, batch_time=chosen[pick % len(chosen)])
            except DriverLogError:
                return

    def forward(self) -> Any:  # noqa: ANN401
        for output in OUTPUTS:
            if found := state_replays.state_replays(self.connection, pipeline_id=self.id, output=output):
                return found[0]
        return None

    def begin_forward(self, pick: int) -> None:
        times = list(self.received)
        try:
            state_replays.begin_state_replay(
                self.connection,
                pipeline_id=self.id,
                output=OUTPUTS[pick % len(OUTPUTS)],
                from_time=times[pick % len(times)],
            )
        except (DriverLogError, BlocksNotRetainedError):
            return

    def move_forward(self, how: str) -> None:
        found = self.forward()
        if found is None:
            return
        move = {
            "stop": state_replays.stop_state_replay,
            "resume": state_replays.resume_state_replay,
            "undo": state_replays.undo_state_replay,
        }[how]
        try:
            move(self.connection, found.replay_id)
        except DriverLogError:
            return

    def step_forward(self, step: str = "", others: int = 0) -> bool:
        """Run the next batch of a replay forward, or of its undoing; return whether there was one."""
        found = self.forward()
        if found is None or self.running():
            return False
        follow_output(self.rig.engine, self.rig.pipeline.outputs[found.output], self.id)
        found = state_replays.state_replay(self.connection, found.replay_id)
        time = state_replays.next_batch(self.connection, found.replay_id)
        if time is None:
            if found.state is StateReplayState.UNDOING:
                state_replays.end_undoing(self.connection, found.replay_id)
            return False
        self.replay(time, found.output, step, others, forward=found.replay_id)
        return True

    def follow(self) -> None:
        follow_targets(self.rig.engine, self.rig.pipeline, self.id)

    def clean_up(self) -> None:
        """Clean up as after a day."""
        for table, column in (("batch_attempts", "ended_at"), ("state_versions", "created_at")):
            self.connection.execute(sa.text(f"UPDATE forebay.{table} SET {column} = {column} - interval '2 hours'"))
        store = open_block_store(self.rig.settings.block_store_roots)
        for found in state_versions_to_delete(
            self.connection, restore_window=WINDOW, keep=timedelta(days=14), limit=100
        ):
            delete_folder(store, found.folder)
            forget_state_version(self.connection, found)

    # -- what holds ----------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Let everything come to its end; then the targets have what the driver log has, and a new batch goes on."""
        self.bury(quarantines=False)
        self.follow()
        for _ in OUTPUTS:
            self.move_forward("resume")
            while self.step_forward():
                pass
        for _ in range(2 * len(self.received) + 2):
            if self.unfinished() is None and not self.quarantined():
                break
            self.run()
            for time in self.quarantined():
                self.replay(time, "", "", 0, failed_outputs_only=True)
        self.follow()
        self.allocate({0: [Click("a", 20 * len(self.received), 1)]})
        self.run()
        self.check()
        assert self.unfinished() is None

    def counted(self, output: str) -> list[Batch]:
        """Return the batches that count for an output."""
        rows = self.connection.execute(
            sa.text(
                "SELECT batch_time FROM forebay.output_commits WHERE pipeline_id = :p AND output = :o "
                "AND state_attempt IS NOT NULL ORDER BY 1"
            ),
            {"p": self.id, "o": output},
        )
        return [Batch((row.batch_time - self.begin) // HOUR, self.received[row.batch_time]) for row in rows]

    def check(self) -> None:
        """Compare each target and each version that counts with the model."""
        models: dict[str, Any] = {
            "sums": Windows(LENGTH, SLIDE, Watermark(LATENESS, IDLE)),
            "sums_late": Windows(LENGTH, SLIDE, Watermark(LATENESS, IDLE)),
            "final": Windows(LENGTH, SLIDE, Watermark(LATENESS, IDLE)),
            "sessions": Sessions(GAP, Watermark(LATENESS, IDLE)),
        }
        for output, model in models.items():
            for batch in self.counted(output):
                model.take(batch)
            assert self.versions(output) == list(zip(model.watermarks, model.late_counts, strict=True)), output
        sums = models["sums"].table
        assert self.table("sums") == sorted((user, start, pages) for (user, start), pages in sums.items())
        sessions = models["sessions"].table
        found = self.table("sessions", "window_end")
        assert found == sorted((user, start, pages, end) for (user, start), (end, pages) in sessions.items())
        final = [(row["user"], self.minute(row["window_start"]), row["pages"]) for row in self.files("final")]
        assert sorted(final) == sorted(models["final"].final)
        late = [(row["user"], row["pages"]) for row in self.files("sums_late")]
        assert sorted(late) == sorted(models["sums_late"].late)
        self.check_attempts()

    def minute(self, time: datetime) -> int:
        return (time - self.begin) // MINUTE

    def table(self, name: str, *more: str) -> list[tuple[Any, ...]]:
        if self.target.rows("SELECT to_regclass(%s)", name) == [(None,)]:
            return []
        columns = ", ".join(['"user"', "window_start", "pages", *more])
        rows = self.target.rows(f"SELECT {columns} FROM {name}")
        return sorted(
            (user, self.minute(start), pages, *(self.minute(time) for time in ends))
            for user, start, pages, *ends in rows
        )

    def files(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        if not path.exists():
            return []
        return list(ds.dataset(path, partitioning="hive", format="parquet").to_table().to_pylist())

    def versions(self, output: str) -> list[tuple[int | None, int]]:
        rows = self.connection.execute(
            sa.text("""
                SELECT v.watermark, v.late
                FROM forebay.output_commits c
                JOIN forebay.state_versions v ON v.pipeline_id = c.pipeline_id AND v.output = c.output
                  AND v.batch_time = c.batch_time AND v.attempt = c.state_attempt
                WHERE c.pipeline_id = :p AND c.output = :o
                ORDER BY c.batch_time
            """),
            {"p": self.id, "o": output},
        )
        return [(None if row.watermark is None else self.minute(row.watermark), row.late) for row in rows]

    def check_attempts(self) -> None:
        """Check that a batch that ran again from the same version got to the same watermark, and counted the same."""
        rows = self.connection.execute(
            sa.text("""
                SELECT output, batch_time
                FROM forebay.state_versions
                WHERE pipeline_id = :p AND frames IS NOT NULL
                GROUP BY output, batch_time, read_batch_time
                HAVING count(DISTINCT (watermark, event_times, late)) > 1
            """),
            {"p": self.id},
        )
        assert [tuple(row) for row in rows] == []


Event = tuple[str, Any, tuple[str, int]]
ANY = st.integers(0, 100)
FAULTS = st.tuples(st.sampled_from(["", "", *STEPS]), st.integers(0, 3))
CLICKS = st.lists(
    st.builds(Click, st.sampled_from("ab"), st.one_of(st.integers(0, 60), st.none()), st.integers(1, 9)), max_size=4
)
#: Records of both receivers, of which the second one is often idle; minutes are from a time that goes on with batches.
RECORDS = st.tuples(CLICKS, st.one_of(st.just([]), CLICKS), st.booleans())
EVENTS = st.one_of(
    st.tuples(st.just("batch"), RECORDS, FAULTS),
    st.tuples(st.just("batch"), RECORDS, FAULTS),
    st.tuples(st.just("batch"), RECORDS, FAULTS),
    st.tuples(st.just("run"), st.just(0), FAULTS),
    st.tuples(st.just("bury"), st.booleans(), st.just(("", 0))),
    st.tuples(st.sampled_from(["relaunch", "follow", "clean up"]), st.just(0), st.just(("", 0))),
    st.tuples(st.just("discard"), ANY, st.just(("", 0))),
    st.tuples(st.just("replay"), ANY, FAULTS),
    st.tuples(st.just("forward"), ANY, FAULTS),
    st.tuples(st.just("step forward"), st.just(0), FAULTS),
    st.tuples(st.sampled_from(["stop", "resume", "undo"]), st.just(0), st.just(("", 0))),
)


def apply_event(history: History, kind: str, what: Any, fault: tuple[str, int]) -> None:  # noqa: ANN401, C901
    if kind == "batch":
        one, two, grows = what
        history.columns += grows and history.columns < 2
        begun = 20 * len(history.received)
        moved = {
            receiver: [
                Click(click.user, None if click.at is None else click.at + begun, click.pages) for click in clicks
            ]
            for receiver, clicks in enumerate((one, two))
        }
        history.allocate(moved)
        history.run(*fault)
    elif kind == "run":
        history.run(*fault)
    elif kind == "bury":
        history.bury(quarantines=what)
    elif kind == "relaunch" and history.relaunch is not None:
        history.relaunch()
    elif kind == "follow":
        history.follow()
    elif kind == "clean up":
        history.clean_up()
    elif kind == "discard":
        history.discard(what)
    elif kind == "replay":
        if (chosen := history.quarantined()) and not history.running():
            time = chosen[what % len(chosen)]
            history.replay(time, "", *fault, failed_outputs_only=what % 2 == 0)
    elif kind == "forward" and history.received and not history.running() and history.forward() is None:
        history.begin_forward(what)
        history.step_forward(*fault)
    elif kind == "step forward":
        history.step_forward(*fault)
    elif kind in ("stop", "resume", "undo"):
        history.move_forward(kind)


@dataclass
class Histories:
    """Makes a driver log, a block store and targets for each history, and lets it happen."""

    server: TestServer
    target: Target
    folder: Path
    session: SparkSession
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def play(self, on_failure: str, events: list[Event]) -> None:
        """Let events happen, and compare with the model when all has calmed down."""
        folder = self.folder / str(next(self.numbers))
        folder.mkdir()
        self.target.rows("DROP TABLE IF EXISTS sums, sessions, forebay_commits")
        with self.server.database() as url:
            engine = create_engine(url, application_name="tests", pool_size=5)
            with connect(engine) as connection:
                rig = EventRig(engine, connection, url, folder)
                history = History(rig, self.target, folder, self.session, on_failure)
                for kind, what, fault in events:
                    apply_event(history, kind, what, fault)
                history.calm()
            engine.dispose()


@pytest.fixture
def histories(
    postgres_server: TestServer, target: Target, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Histories:
    for module, name in zip((state_versions, state_versions, outputs), STATEMENTS, strict=True):
        monkeypatch.setattr(module, name, _faulty(name, getattr(module, name)))
    monkeypatch.setattr(statement_retry, "FIRST_PAUSE_SECONDS", 0.001)
    return Histories(postgres_server, target, tmp_path, session)


def batch(*one: tuple[str, int | None, int], fault: str = "", others: int = 0, grows: bool = False) -> Event:
    """Return a batch of the first receiver; minutes are from 20 for each batch before it."""
    return "batch", ([Click(*each) for each in one], [], grows), (fault, others)


THREE = [batch(("a", 1, 1), ("b", 14, 2)), batch(("a", 0, 4), ("a", 30, 1), grows=True), batch(("b", 5, 8))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "events",
    [
        pytest.param(
            [*THREE, batch(("a", 20, 1), fault="committed"), ("bury", False, ("", 0)), ("run", 0, ("", 0))],
            id="killed between the target's commit and its row",
        ),
        pytest.param(
            [*THREE, ("forward", 4, ("committed", 0)), ("bury", False, ("", 0)), ("undo", 0, ("", 0))],
            id="a replay of the sums from the second batch, killed and undone",
        ),
        pytest.param(
            [*THREE, batch(("a", 20, 1), fault="note_version after", others=2), ("bury", True, ("", 0)), batch()],
            id="quarantined with some results, and replayed",
        ),
        pytest.param(
            [*THREE, batch(("a", 20, 1), fault="staged"), ("bury", True, ("", 0)), ("discard", 0, ("", 0)), batch()],
            id="discarded",
        ),
    ],
)
def test_targets_have_what_counts(histories: Histories, events: list[Event]) -> None:
    histories.play("halt", events)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_targets_have_what_the_model_has_whatever_happens(histories: Histories) -> None:
    @settings(
        max_examples=8,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # Each example takes half a minute: its events say enough without a search for fewer.
        phases=[Phase.explicit, Phase.generate],
    )
    @given(st.lists(EVENTS, min_size=5, max_size=10), st.sampled_from(["halt", "skip"]))
    def search(events: list[Event], on_failure: str) -> None:
        histories.play(on_failure, events)

    search()
