"""What `dg` finds under the name `forebay.components`, by entry point."""

from __future__ import annotations

from orchestration.dagster_defs.component import PipelineComponent

__all__ = ["PipelineComponent"]
