"""For Dagster code locations: `build_definitions`, and `is_given_up` for your own failure sensors."""

from __future__ import annotations

from orchestration.dagster_defs.build_definitions import build_definitions
from orchestration.dagster_defs.given_up import is_given_up

__all__ = ["build_definitions", "is_given_up"]
