"""What a Dagster code location imports: `build_definitions`."""

from __future__ import annotations

from orchestration.dagster_defs.build_definitions import build_definitions

__all__ = ["build_definitions"]
