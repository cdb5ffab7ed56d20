"""For Dagster code locations: `build_definitions`, `event_sensor`, and what your own assets and sensors need.

`past_partitions` is for assets below a partitioned output, and `is_given_up` is for your own failure sensors.
"""

from __future__ import annotations

from orchestration.dagster_defs.build_definitions import build_definitions
from orchestration.dagster_defs.checks.given_up import is_given_up
from orchestration.dagster_defs.sensors.event_sensor import event_sensor
from orchestration.dagster_defs.shared.partitions import past_partitions
from tracker_store.reports.listener_events import EventKind, ListenerEvent

__all__ = ["EventKind", "ListenerEvent", "build_definitions", "event_sensor", "is_given_up", "past_partitions"]
