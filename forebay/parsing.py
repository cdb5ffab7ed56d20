"""Parse JSON, CSV and log lines into columns; see ``docs/how-to/parse-records.md``. Loads Spark only when called."""

from __future__ import annotations

from orchestration.spark.parsing import (
    CORRUPT,
    corrupt,
    from_csv_records,
    from_json_records,
    from_regex_records,
    well_formed,
)

__all__ = [
    "CORRUPT",
    "corrupt",
    "from_csv_records",
    "from_json_records",
    "from_regex_records",
    "well_formed",
]
