"""Check, without changing anything, whether an output's sink could be written to from here. The sink decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.cli.checks.findings import Finding, Health
from orchestration.declarations.asked_targets import NO_STOP, ORDER
from orchestration.declarations.sink import SinkError
from orchestration.declarations.state.event_time import EventJoin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from orchestration.declarations.pipeline import Output


def name_of(output: Output) -> str:
    """Return how findings name an output."""
    return f"output {output.pipeline.name}/{output.name}"


def check_needs(output: Output) -> Iterator[Finding]:
    """Import what the output's sink needs, and say what is missing."""
    try:
        output.sink.load()
    except SinkError as error:
        yield Finding(name_of(output), Health.FAILED, str(error), "Install it here too, to check the rest.")


def check_event_time(output: Output) -> Iterator[Finding]:
    """Say which windows or pairs the sink of an output by event time gets, and where late records are."""
    event = output.event
    if event is None or event.only_late:
        return
    if isinstance(event.kind, EventJoin):
        gets = "each pair once, in the batch in which its later record comes"
    elif event.updates:
        gets = "each window as soon as it has a record, and its rows again, in place of those, when it has more"
    else:
        gets = "each window once, when it is final"
        # Sinks with a mode can merge.
        if getattr(output.sink, "mode", None) is not None:
            gets += "; with mode='merge' it would get it again as it changes"
    late = f"{output.name}_late"
    kept = f"are in output {late}" if late in output.pipeline.outputs else "are only counted: late=SINK would keep them"
    yield Finding(name_of(output), Health.OK, f"its sink gets {gets}. Records that are too late {kept}")


def check_sink(output: Output, schema: StructType | None, step: str) -> Finding:
    """Return what the output's sink says of its target, or that it was not tried.

    `schema`: the result's, if known. `step`: what the target needs before the output is applied; a failure names it.
    """
    try:
        checked = output.sink.check_target(schema)
        if checked is None or checked.health != "failed":
            checked = output.sink.check_writer(output.pipeline.name, output.name) or checked
    except Exception as error:  # noqa: BLE001  a target's client may raise anything
        found = f"its target can't be looked at: {type(error).__name__}: {error}"
        return Finding(
            name_of(output), Health.FAILED, found, "Look whether it is there, and is what the sink writes to."
        )
    order = f"{ORDER.format(output.pipeline.name)} {NO_STOP}"
    if step and (checked is None or checked.health != "failed"):
        return Finding(name_of(output), Health.WARNING, step, order)
    if checked is None:
        return Finding(name_of(output), Health.OK, f"{output.sink.declaration().get('kind', '')}: not tried")
    way_out = f"{checked.way_out} {order}" if step else checked.way_out
    return Finding(name_of(output), Health(checked.health), checked.found, way_out)
