"""Check, without changing anything, whether an output's sink could be written to from here.

It opens no file for writing and creates nothing: it asks the file system and the target for this user's rights.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.cli.checks.findings import Finding, Health
from orchestration.sinks.postgres.postgres_access import access
from orchestration.sinks.postgres.postgres_staging import TargetError
from receiver_runtime.sources.fields.secret import SecretError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestration.declarations.pipeline import Output

APPLICATION = "forebay validate"
_REFERENCES = ("env:", "file:")


def check_sink(output: Output) -> Iterator[Finding]:
    """Check the place that the output's sink writes to; yield a finding that says so if it can't be looked at."""
    name = f"output {output.pipeline.name}/{output.name}"
    sink = output.sink.declaration()
    kind = sink.get("kind", "")
    path = sink.get("path")
    if kind == "postgres":
        yield _postgres(name, sink)
    elif isinstance(path, str) and "://" not in path and not path.startswith(_REFERENCES):
        yield _directory(name, Path(path))
    else:
        yield Finding(name, Health.OK, f"{kind}: not tried")


def _postgres(name: str, sink: dict[str, object]) -> Finding:
    try:
        found = access(sink, APPLICATION)
    except SecretError as error:
        way_out = "Set it where batches run; to check the target from here, set it here too."
        return Finding(name, Health.WARNING, f"{sink['table']}: {error}", way_out)
    except TargetError as error:
        return Finding(name, Health.FAILED, str(error), "Start the target, or correct the URL.")
    if found.missing_rights:
        way_out = "Grant it to the login of the sink's URL."
        return Finding(name, Health.FAILED, "; ".join(found.missing_rights + found.misfits), way_out)
    if found.misfits:
        return Finding(name, Health.FAILED, "; ".join(found.misfits), "Give the output a table of its own.")
    if found.warnings:
        way_out = "If it was made by mode='merge', go back to that, or drop the constraint."
        return Finding(name, Health.WARNING, "; ".join(found.warnings), way_out)
    return Finding(name, Health.OK, f"{sink['table']}: its Postgres answers, and may be written to")


def _directory(name: str, path: Path) -> Finding:
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir():
        way_out = "Declare another path, or move the file."
        return Finding(name, Health.FAILED, f"{there} is no directory", way_out)
    if not os.access(there, os.W_OK | os.X_OK):
        way_out = "Let the account that runs batches write there, or declare another path."
        return Finding(name, Health.FAILED, f"{there} can't be written by this user", way_out)
    return Finding(name, Health.OK, f"{path} can be written" if there == path else f"{path} can be created")
