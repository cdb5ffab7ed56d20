"""How many executors a pipeline's next Spark session is made with: what its scaling schedule decided last (O04).

It only reads. A driver log that does not answer is no reason to hold a batch up: the session is made without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from orchestration.spark.executor_allocation import executor_configuration, has_executors
from orchestration.spark.session_configuration import spark_master
from tracker_store.engine import connect, create_engine
from tracker_store.errors import DriverLogError
from tracker_store.scaling import scaling_decision

if TYPE_CHECKING:
    from orchestration.pipeline import Pipeline
    from orchestration.settings import Settings

log = structlog.get_logger(__name__)


def wanted_executors(settings: Settings, pipeline: Pipeline) -> dict[str, str]:
    """What to configure the session with; nothing where dynamic allocation is off, or the master has no executors."""
    master = spark_master(settings, pipeline.spark_configuration)
    if not pipeline.settings.dynamic_allocation_enabled or not has_executors(master):
        return {}
    least = pipeline.settings.dynamic_allocation_min_executors
    engine = create_engine(
        settings.require_database_url(), application_name=f"forebay batch {pipeline.name}", pool_size=1
    )
    try:
        with connect(engine) as connection:
            decision = scaling_decision(connection, pipeline.name)
    except DriverLogError as error:
        log.warning("how many executors are wanted is not known, Spark decides", error=str(error))
        return {}
    finally:
        engine.dispose()
    executors = least if decision is None else decision.executors
    return executor_configuration(master, executors=executors, least=least)
