"""Apply what a reloaded code location declares, in an instance of the user's own.

There nothing watches files: Dagster's Reload loads the code, and with the batch sensor's next tick what it declares
takes effect too. The sensor's cursor holds what the driver log had when the sensor's code last agreed with it. So code
that is only loaded again, or an older copy of it, never takes back what somebody has applied since; it waits for
`forebay apply`, as a first apply, a removal, a rename, and a sink whose target must be changed do.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from orchestration.batches.batch_schedule import declaration_fingerprint
from orchestration.declarations.apply import apply, is_applied, refuse
from orchestration.declarations.asked_targets import PAUSED, ask_targets
from orchestration.declarations.compatibility import declared, needs_a_person
from orchestration.declarations.declaration_error import DeclarationError
from tracker_store.batches.pipelines import list_pipelines, stream_declarations
from tracker_store.connection.errors import SharedPlaceError, StrandingChangeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class AppliedCursor:
    """Hold what a sensor's code and the driver log agreed on last.

    loaded: when that code was loaded, by its host's clock. parts: fingerprints of the pipeline and of its streams.
    """

    loaded: float = 0.0
    parts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str | None) -> Self:
        """Return a cursor as Dagster keeps it; one that says nothing if there is none yet."""
        return cls(**json.loads(text)) if text else cls()

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def follow_reload(
    connection: sa.Connection, pipeline: Pipeline, before: AppliedCursor, *, loaded: float
) -> tuple[AppliedCursor, str]:
    """Apply the pipeline if a reload has changed it; return the cursor now, and what waits for a person.

    `loaded`: when the sensor's code was loaded.
    """
    mine = declared([pipeline])
    if is_applied(connection, pipeline):
        return (AppliedCursor(loaded, _parts(mine)) if loaded >= before.loaded else before), ""
    known = _in_driver_log(connection, pipeline.name)
    if known is None or not before.parts or loaded < before.loaded:
        return before, ""
    has, wants = _parts(known), _parts(mine)
    if any(has[name] not in {before.parts.get(name), wants.get(name)} for name in has):
        return before, ""
    if waits_for := _waits_for(connection, pipeline, needs_a_person(known, mine, {})):
        return before, waits_for
    try:
        apply(connection, [pipeline])
    except (DeclarationError, SharedPlaceError, StrandingChangeError) as error:
        return before, str(error)
    return AppliedCursor(loaded, wants), ""


def _waits_for(connection: sa.Connection, pipeline: Pipeline, decisions: Sequence[str]) -> str:
    """Return what a change waits for: a person, or the targets that have to be looked at; empty: nothing."""
    if decisions:
        try:
            refuse(connection, [pipeline])
        except (DeclarationError, SharedPlaceError, StrandingChangeError) as error:
            return f"What waits for it: {'; '.join(decisions)}. {error}"
        return f"What waits for it: {'; '.join(decisions)}."
    targets = ask_targets(connection, [pipeline])
    if steps := [*targets.refused, *(f"{step} {PAUSED}" for step in targets.steps.values())]:
        return f"What waits for it: {' '.join(steps)}"
    return f"The next tick tries again: {' '.join(targets.unlooked)}" if targets.unlooked else ""


def _in_driver_log(connection: sa.Connection, pipeline: str) -> dict[str, Any] | None:
    """Return a pipeline and its streams as they are applied, in the form of `declared`."""
    for row in list_pipelines(connection):
        if row.name == pipeline:
            streams = stream_declarations(connection, row.stream_ids)
            return {"pipelines": {pipeline: row.declaration}, "streams": streams}
    return None


def _parts(found: Mapping[str, Any]) -> dict[str, str]:
    """Return fingerprints that are equal for equal declarations in code and driver log."""
    parts = {f"pipeline {name}": declaration_fingerprint(one, {}) for name, one in found["pipelines"].items()}
    for name, one in found["streams"].items():
        parts[f"stream {name}"] = declaration_fingerprint({"streams": [name]}, {name: one})
    return parts
