"""Gives an output of one attempt the state of its keys, and writes the version of the state that the attempt makes.

The version is written before the sink's result, and counts once the output's commit names it; until then it is of no
consequence. Which version is read is the driver log's answer, and the commit is refused if that was not the newest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from orchestration.batches.attempt_outputs import ChangedState
from orchestration.batches.following import follow_output
from orchestration.batches.stateful.watermark import EventProgress
from orchestration.declarations.sink import SinkError, TargetUnavailableError, checked_result
from orchestration.spark.statement_retry import retry_statement
from orchestration.state.state_schema import StateSchema
from tracker_store.batches import state_versions
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import sqlalchemy as sa
    from pyspark.sql import DataFrame, SparkSession

    from orchestration.batches.stateful.event_batch import EventBatch
    from orchestration.declarations.pipeline import Output
    from orchestration.declarations.settings import Settings
    from orchestration.declarations.sink import OutputAttempt
    from orchestration.declarations.state.declared import State
    from orchestration.state.writing import WrittenState
    from tracker_store.batches.state_versions import StateToRead, StateVersion

# What windows or join a state is of, in the schema of its versions.
_MADE_OF = "made_of"

log = structlog.get_logger(__name__)


class StateWaitsError(TargetUnavailableError):
    """This state can't be read yet: a batch before it has no result, or a replay runs. The batch is BLOCKED."""


@dataclass(frozen=True, slots=True)
class _Base:
    """Hold what a version is made of: the frames of the versions before it, or a whole state that Spark computes."""

    chain: Sequence[Sequence[Any]]
    whole: DataFrame | None = None


class StateRun:
    """Hold the state of one output in one attempt; used by one thread."""

    def __init__(
        self,
        engine: sa.Engine,
        output: Output,
        attempt: OutputAttempt,
        settings: Settings,
        expected: Mapping[str, Sequence[str]],
        forward: int | None = None,
    ) -> None:
        """Ask which version to read; `forward`: as the batch of this replay forward. Raises StateWaitsError."""
        assert output.state is not None
        self._engine = engine
        self._output = output
        self._state: State = output.state
        self._attempt = attempt
        self._stores: dict[str, Any] = {
            "roots": settings.block_store_roots,
            "block_keys": ",".join(map(str, settings.block_key_references)),
            "expected": expected,
        }
        # A key that is only for reading encrypts nothing.
        self._encrypts = settings.block_key is not None
        #: The columns, and the time by which keys expire. Of an output by event time, the batch's own (`follow`).
        self.schema: StateSchema = output.state.schema
        self.clock = attempt.batch_time
        self._event: EventBatch | None = None
        self._base: _Base | None = None
        self._cached: list[DataFrame] = []
        self._forward = forward
        #: The identities of the windows whose rows the result replaces.
        self.replaced: DataFrame | None = None
        #: What was written; None: nothing yet.
        self.changed: ChangedState | None = None
        self._follow()
        with connect(engine) as connection:
            self._to_read = state_versions.state_to_read(
                connection,
                pipeline_id=attempt.pipeline_id,
                output=output.name,
                batch_time=attempt.batch_time,
                forward=forward,
            )
        self._check_order(self._to_read)

    def _follow(self) -> None:
        """Take over what the target has of batches that were given up: the state would lack them for ever."""
        if self._forward is None:
            follow_output(self._engine, self._output, self._attempt.pipeline_id, before=self._attempt.batch_time)

    def _check_order(self, found: StateToRead) -> None:
        name, pipeline = self._attempt.name, self._attempt.pipeline
        if found.replay is not None:
            raise StateWaitsError(
                f"{name} waits for replay {found.replay} of its state: `forebay status` says how far that is"
            )
        if found.unfinished is not None:
            raise StateWaitsError(
                f"{name} has a state, and waits for batch {found.unfinished.isoformat()} before this one"
            )
        if found.hole is None:
            return
        time = found.hole.isoformat()
        if self._state.on_failure == "skip":
            log.warning("the state goes on without a quarantined batch", output=self._output.name, batch_time=time)
            return
        raise StateWaitsError(
            f"{name} has a state, and batch {time} before this one is quarantined without a result of it: fix the "
            f"cause and run `forebay batches replay {pipeline} {time}`, or give it up with "
            f"`forebay batches discard {pipeline} {time}`"
        )

    @property
    def version_attempt(self) -> int:
        """Return the attempt that wrote the version of the result: this one, or the one that is restored."""
        return self._attempt.attempt if self._to_read.restores is None else self._to_read.restores

    def adopts(self, attempt: int) -> bool:
        """Return whether a commit of an attempt in the target can stand: its version is whole, and follows the head."""
        with connect(self._engine) as connection:
            found = self._version(connection, self._attempt.batch_time, attempt)
        return found is not None and found.frames is not None and found.read == self._to_read.head

    def _version(
        self, connection: sa.Connection, batch_time: datetime, attempt: int, output: str | None = None
    ) -> StateVersion | None:
        return state_versions.version(
            connection,
            pipeline_id=self._attempt.pipeline_id,
            output=output or self._output.name,
            batch_time=batch_time,
            attempt=attempt,
        )

    @property
    def overrides_to(self) -> datetime | None:
        """Return up to which batch the rows that a target has are those of results that a replay forward replaces."""
        return self._to_read.to_time

    def progress(self) -> EventProgress:
        """Return how far the event time was before the batch.

        That is so after the batch of the version that is read. A replay forward that begins with no state goes by the
        version before, else it would take for timely what was too late. Late records go by the output's whose they are.
        """
        version, of = self._to_read.head, self._output.late_of
        with connect(self._engine) as connection:
            if of is not None or (version is None and self._forward is not None):
                version = state_versions.committed_before(
                    connection,
                    pipeline_id=self._attempt.pipeline_id,
                    output=of or self._output.name,
                    batch_time=self._attempt.batch_time,
                )
            if version is None:
                return EventProgress()
            found = self._version(connection, version.batch_time, version.attempt, of)
        return _progress_of(found)

    def restored(self) -> EventProgress | None:
        """Return the progress after the batch, if a replay forward is undone: that of the version that is restored."""
        if self._to_read.restores is None:
            return None
        with connect(self._engine) as connection:
            return _progress_of(self._version(connection, self._attempt.batch_time, self._to_read.restores))

    def follow(self, event: EventBatch) -> None:
        """Take the columns and the watermark of a batch by event time."""
        self._event = event
        self.schema, self.clock = event.schema, event.clock

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, session: SparkSession, keys: DataFrame | None) -> DataFrame:
        """Return the state of these keys, and of those that expire; None: of all."""
        from orchestration.state.reading import read_state  # noqa: PLC0415  loads pyspark
        from orchestration.state.whole_state import of_keys  # noqa: PLC0415  the same

        self._base = base = self._find_base(session)
        if base.whole is not None:
            found = of_keys(base.whole, self.schema, keys, self.clock)
        else:
            found = read_state(
                session,
                self.schema,
                base.chain,
                keys,
                batch_time=self.clock,
                buckets=self._to_read.buckets or self._state.buckets,
                **self._stores,
            )
        # The result and the changed state are both computed of it.
        return self._persisted(found)

    def _persisted(self, frame: DataFrame) -> DataFrame:
        self._cached.append(persisted := frame.persist())
        return persisted

    def _find_base(self, session: SparkSession) -> _Base:
        """Return what the version is made of. Raises SinkError."""
        from orchestration.state.reading import read_state  # noqa: PLC0415  loads pyspark
        from orchestration.state.whole_state import widened  # noqa: PLC0415  the same

        state, head = self._state, self._to_read.head
        if head is None:
            return _Base((), None if state.initial is None else checked_result(state.initial(session), "state initial"))
        with connect(self._engine) as connection:
            before = self._version(connection, head.batch_time, head.attempt)
            chain = state_versions.chain(
                connection, pipeline_id=self._attempt.pipeline_id, output=self._output.name, version=head
            )
        assert before is not None
        frames = _frames(chain)
        self._check_made_of(before)
        schema = StateSchema.of_row(before.schema)
        if before.schema_version == state.version:
            if schema != self.schema and self._event is None:
                raise SinkError(
                    f"{self._attempt.name}: its state was written with {schema.to_row()}, which is not what is "
                    "declared: raise `version`, and give `migrate`"
                )
            if schema == self.schema:
                return _Base(frames)
        elif state.migrate is None:
            raise SinkError(
                f"{self._attempt.name}: its state has version {before.schema_version}, and version {state.version} is "
                "declared: give `migrate=`, a function from the state as it was to that"
            )
        whole = read_state(
            session,
            schema,
            frames,
            None,
            batch_time=self.clock,
            buckets=before.buckets,
            **self._stores,
        )
        # The streams have got further columns, which are null in the records before.
        migrate = state.migrate if before.schema_version != state.version else partial(widened, schema=self.schema)
        assert migrate is not None
        return _Base((), checked_result(migrate(whole), "state migrate"))

    def _check_made_of(self, before: StateVersion) -> None:
        """Raise SinkError if the state is of other windows than those that are declared."""
        declared, had = self._schema_row().get(_MADE_OF), before.schema.get(_MADE_OF)
        if declared != had:
            raise SinkError(
                f"{self._attempt.name}: its state was written for {had or 'no windows'}, and {declared or 'none'} is "
                "declared: what is kept is of no use to others. Declare it as it was, or give the output another name"
            )

    def _schema_row(self) -> dict[str, Any]:
        """Return the schema as the version's row keeps it."""
        made_of = self._state.declaration().get(_MADE_OF)
        return self.schema.to_row() if made_of is None else {**self.schema.to_row(), _MADE_OF: made_of}

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, session: SparkSession, changes: DataFrame) -> None:
        """Write the attempt's version, and note it in the driver log, unless an earlier one is restored.

        Raises SinkError, AttemptSupersededError and StateMovedError.
        """
        from orchestration.state.whole_state import changed  # noqa: PLC0415  loads pyspark
        from orchestration.state.writing import write_state  # noqa: PLC0415  the same

        assert self._base is not None
        if self._to_read.restores is not None:
            return
        attempt, state, base = self._attempt, self._state, self._base
        folder = f"state/{attempt.pipeline_id}/{self._output.name}/{attempt.batch_id}-{attempt.attempt}"
        buckets = state.buckets if self._to_read.buckets is None or base.whole is not None else self._to_read.buckets

        def begin(connection: sa.Connection) -> None:
            state_versions.begin_version(
                connection,
                pipeline_id=attempt.pipeline_id,
                output=self._output.name,
                batch_time=attempt.batch_time,
                attempt=attempt.attempt,
                read=self._to_read.head,
                schema_version=state.version,
                schema=self._schema_row(),
                buckets=buckets,
                folder=folder,
                replay=self._forward,
            )

        retry_statement(self._engine, begin, f"version of the state of {attempt.name}")
        # The result is mostly computed of them, and has then the same values, whatever the function draws at random.
        changes = self._persisted(changes)
        whole = changes if base.whole is None else changed(base.whole, changes, self.schema, self.clock)
        written = write_state(
            session,
            self.schema,
            whole,
            base.chain,
            ordinal=self._to_read.ordinal,
            buckets=buckets,
            folder=folder,
            batch_time=attempt.batch_time,
            attempt=attempt.attempt,
            clock=self.clock,
            ttl=state.ttl,
            encrypts=self._encrypts,
            **self._stores,
        )
        retry_statement(self._engine, lambda connection: self._note(connection, written), f"state of {attempt.name}")
        counts = (written.changed, written.deleted, written.keys, written.bytes)
        progress = None if self._event is None else self._event.progress
        self.changed = ChangedState(
            *counts,
            watermark=None if progress is None else progress.watermark,
            late=None if progress is None else progress.late,
        )

    def _note(self, connection: sa.Connection, written: WrittenState) -> None:
        progress = None if self._event is None else self._event.progress
        state_versions.note_version(
            connection,
            pipeline_id=self._attempt.pipeline_id,
            output=self._output.name,
            batch_time=self._attempt.batch_time,
            attempt=self._attempt.attempt,
            frames=[frame.to_row() for frame in written.frames],
            keys=written.keys,
            changed=written.changed,
            deleted=written.deleted,
            bytes=written.bytes,
            # By event time, windows end with records; without any, a batch is due when a source is idle.
            next_expiry=written.next_expiry if progress is None else progress.next_idle,
            watermark=None if progress is None else progress.watermark,
            event_times=None if progress is None else progress.rows(),
            late=None if progress is None else progress.late,
        )

    def close(self) -> None:
        """Let go of what was cached for the output's function, and by it."""
        for frame in self._cached:
            frame.unpersist()
        if self._event is not None:
            self._event.release()
        if (release := getattr(self._output.function, "release", None)) is not None:
            release()


class StateTrial(StateRun):
    """Read the state for a trial of the output's function: the changes are computed in full, and discarded."""

    def _follow(self) -> None:
        """Leave the driver log as it is."""

    def write(self, session: SparkSession, changes: DataFrame) -> None:  # noqa: ARG002  as a run's
        """Compute the changes."""
        changes.write.format("noop").mode("overwrite").save()


def _progress_of(version: StateVersion | None) -> EventProgress:
    return EventProgress() if version is None else EventProgress.of_rows(version.watermark, version.event_times)


def _frames(chain: Sequence[Sequence[Any]]) -> list[list[Any]]:
    from orchestration.state.state_frame import StateFrame  # noqa: PLC0415  only outputs with a state need it

    return [[StateFrame.of_row(row) for row in version] for version in chain]
