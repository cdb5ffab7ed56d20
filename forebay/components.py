"""For `dg`: the components that it finds by the entry point to `forebay.components`."""

from __future__ import annotations

from orchestration.dagster_defs.component import PipelineComponent

__all__ = ["PipelineComponent"]
