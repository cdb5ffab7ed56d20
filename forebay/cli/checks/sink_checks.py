"""Check, without changing anything, whether an output's sink could be written to from here. The sink decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.cli.checks.findings import Finding, Health

if TYPE_CHECKING:
    from orchestration.declarations.pipeline import Output


def check_sink(output: Output) -> Finding:
    """Return what the output's sink says of its target, or that it was not tried."""
    name = f"output {output.pipeline.name}/{output.name}"
    checked = output.sink.check_target()
    if checked is None:
        return Finding(name, Health.OK, f"{output.sink.declaration().get('kind', '')}: not tried")
    return Finding(name, Health(checked.health), checked.found, checked.way_out)
