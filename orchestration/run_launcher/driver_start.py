"""Load what a batch driver needs before it takes runs: the user's module, a Spark session, and Dagster's code.

Starting Spark takes 6 s of CPU time in another process, loading Dagster 2 s in this one, so both happen in parallel.
This module loads no Dagster itself, so that the session starts first.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.declarations.modules import load_pipelines
from orchestration.spark.session.session import WarmSession, load_spark
from orchestration.spark.session.session_configuration import own_settings, shared_configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestration.declarations.pipeline import Pipeline
    from orchestration.declarations.settings import Settings

CODE_MODULE = "orchestration.definitions"
_LOADED_BESIDE = ("orchestration.run_launcher.batch_driver", "dagster_postgres", CODE_MODULE)


@dataclass(frozen=True, slots=True)
class Started:
    """Hold a session for the runs of these pipelines, made with their Spark configuration."""

    pipelines: Sequence[Pipeline]
    session: WarmSession


def start(settings: Settings, *, application: str) -> Started:
    """Start Spark, and load what runs need. Call it in the main thread.

    Raises ModuleMissingError, PipelineModuleError, and what ``spark_session`` raises. An error in the parallel loading
    is raised again by the next import of that module.
    """
    # First, because build_definitions(spark=...) in the module sets the session's configuration.
    pipelines = load_pipelines(settings.require_module())
    # Two threads that import the same modules would wait for each other.
    load_spark()
    beside = threading.Thread(target=_load, name="loading", daemon=True)
    beside.start()
    # Before any run redirects its output: a JVM keeps the standard output that it starts with.
    session = WarmSession(
        settings,
        application=application,
        configuration=shared_configuration(pipelines),
        own=own_settings(pipelines),
    )
    beside.join()
    return Started(pipelines, session)


def _load() -> None:
    for module in _LOADED_BESIDE:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
