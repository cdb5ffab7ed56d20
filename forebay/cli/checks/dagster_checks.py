"""Check for `forebay doctor` the settings of the Dagster instance that runs the batches: its `dagster.yaml`.

It reads the file, and loads no instance: an instance connects to its storage.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.cli.checks.findings import Finding, Health

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from orchestration.declarations.settings import Settings

_CHECK = "dagster"
_AS_IN = "as in deploy/dagster.yaml"
_SENSOR_WORKERS = 8  # the least that leaves threads for other sensors while a few batch sensors wait


def check_instance(settings: Settings) -> Iterator[Finding]:
    """Check the instance that DAGSTER_HOME names, else that of `forebay up` in this home; none: nothing to check."""
    named = os.environ.get("DAGSTER_HOME")
    home = Path(named) if named else settings.home / "dagster"
    file = home / "dagster.yaml"
    if not named and not file.exists():
        yield Finding(_CHECK, Health.OK, "`forebay up` makes its instance at its first start")
        return
    if named and not home.is_absolute():
        yield Finding(_CHECK, Health.FAILED, f"DAGSTER_HOME={named} is no path from the root", "Give it from the root.")
        return
    if not file.exists():
        found = f"there is no {file}: Dagster keeps its runs in SQLite, and starts a process with Spark for each batch"
        yield Finding(_CHECK, Health.WARNING, found, "Copy deploy/dagster.yaml there, or correct DAGSTER_HOME.")
        return
    try:
        said = _read(file)
    except (OSError, ValueError) as error:
        yield Finding(_CHECK, Health.FAILED, f"{file} can't be read: {error}", "Correct the file.")
        return
    problems = list(_problems(said))
    for found, way_out in problems:
        yield Finding(_CHECK, Health.WARNING, f"{file}: {found}", way_out)
    if not problems:
        yield Finding(_CHECK, Health.OK, f"{file} has what batches need")


def _read(file: Path) -> Mapping[str, Any]:
    """Return the settings. Raises OSError, or ValueError for what is no YAML, or no mapping."""
    from dagster_shared.yaml_utils import load_yaml_from_path  # noqa: PLC0415  only for this check
    from yaml import YAMLError  # noqa: PLC0415  as above

    try:
        said = load_yaml_from_path(str(file))
    except YAMLError as error:
        raise ValueError(str(error)) from error
    if said is not None and not isinstance(said, dict):
        raise ValueError("it is no mapping")
    return said or {}


def _problems(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong, and how to fix it."""
    if not said.get("storage") and not said.get("run_storage"):
        yield (
            "it names no storage, so runs are in SQLite on this host",
            f"Set `storage` {_AS_IN}, so that daemon, webserver and batches on any host share it.",
        )
    launcher = said.get("run_launcher")
    if not isinstance(launcher, dict) or launcher.get("class") != "BatchRunLauncher":
        yield (
            "its run_launcher does not know batch drivers, so each batch starts a process, and Spark in it",
            f"Set `run_launcher` {_AS_IN}.",
        )
    sensors = said.get("sensors")
    if not isinstance(sensors, dict) or not sensors.get("use_threads"):
        yield (
            "sensors have no threads: while one batch sensor waits for its boundary, no other sensor ticks",
            f"Set `sensors` {_AS_IN}.",
        )
    elif isinstance(workers := sensors.get("num_workers"), int) and workers < _SENSOR_WORKERS:
        yield (
            f"sensors have {workers} threads, and each batch sensor holds one until its boundary",
            f"Set `sensors.num_workers` {_AS_IN}, or more than there are pipelines.",
        )
    monitoring = said.get("run_monitoring")
    if not isinstance(monitoring, dict) or not monitoring.get("enabled"):
        yield (
            "run_monitoring is off, so a run whose process died stays STARTED in Dagster",
            f"Set `run_monitoring` {_AS_IN}.",
        )
    if not said.get("retention"):
        yield (
            "it names no retention, so Dagster keeps a row for each tick of each sensor",
            f"Set `retention` {_AS_IN}.",
        )
