"""For tests of your own pipelines; see ``docs/how-to/testing.md``. Loads no Dagster, and Spark only in `run_batch`."""

from __future__ import annotations

from orchestration.batches.pipeline_testing import Records, Results, run_batch

__all__ = ["Records", "Results", "run_batch"]
