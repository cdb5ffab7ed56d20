"""Read how many executors a pipeline's next Spark session gets: the last decision of its scaling schedule (O04).

It only reads. If the driver log does not answer, the batch does not wait: the session is made without the number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from orchestration.policies.executor_allocation import executor_configuration, has_executors
from orchestration.spark.session.session_configuration import spark_master
from tracker_store.batches.scaling import scaling_decision
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import DriverLogError

if TYPE_CHECKING:
    from orchestration.declarations.pipeline import Pipeline
    from orchestration.declarations.settings import Settings

log = structlog.get_logger(__name__)


def wanted_executors(settings: Settings, pipeline: Pipeline) -> dict[str, str]:
    """Return Spark settings for the session; empty if dynamic allocation is off, or the master has no executors."""
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
        log.warning("can't read how many executors are wanted, Spark decides", error=str(error))
        return {}
    finally:
        engine.dispose()
    executors = least if decision is None else decision.executors
    return executor_configuration(master, executors=executors, least=least)
