"""Check how the cause of a failed run is worded."""

from __future__ import annotations

from orchestration.dagster_defs.shared.run_errors import _without_the_others


def test_a_job_that_there_is_not_is_said_without_those_that_there_are() -> None:
    said = _without_the_others("Could not find job 'words_batch'. Found: 'maintenance', 'terms_batch'.")
    assert said == "Could not find job 'words_batch': the code that the run was given does not have its pipeline"
    assert _without_the_others("Found: a disk that is full.") == "Found: a disk that is full."
