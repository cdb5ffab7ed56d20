"""Look after one hour of a sink's target, as the job does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestration.declarations.sink import Upkeep, unchecked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from orchestration.declarations.sink import Check, Sink


def keep_hour(sink: Sink, hour: datetime, committed: Mapping[datetime, int], *, check: Check = unchecked) -> int | None:
    """Return the rows of the hour that was merged; None: nothing was merged."""
    return sink.upkeep(Upkeep("words", "counts", hour, committed, check=check)).get("rows")
