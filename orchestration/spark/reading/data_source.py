"""Define `spark.read.format("forebay")`, which reads exactly the blocks that were allocated to a batch, in parallel.

Options: `pipeline` and `batch_time` (ISO 8601) name the batch, `stream` the input; with `window_seconds` it reads the
blocks of all batches in the time window that ends with the batch. `spark.readStream` has its own options
(`stream_reader`). `database_url`, `block_store` and `block_keys` (references to the keys of encrypted blocks) default
to the environment's (`FOREBAY_DATABASE_URL`, …). The planner reads block locations and the expected identity of the
block store once from the driver log; `block_reader` reads the planned blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema

from orchestration.spark.reading.block_reader import BLOCK_KEYS, ForebayReader
from orchestration.spark.reading.spark_types import spark_schema
from orchestration.spark.reading.stream_reader import ForebayStreamReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

FORMAT = "forebay"

_OF_A_BATCH = ("pipeline", "batch_time")


class ForebayDataSource(DataSource):
    """Spark's data source for the format `forebay`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def _checked_options(self, *needed: str) -> dict[str, str]:
        options = {key: value for key, value in self.options.items() if value is not None}
        missing = [name for name in (*needed, "stream") if name not in options]
        if missing:
            message = f"format {FORMAT!r} needs the option(s) {', '.join(missing)}: .option({missing[0]!r}, …)"
            if missing[:2] == [*_OF_A_BATCH]:
                message += "; or, for spark.readStream, 'reader'"
            raise ValueError(message)
        if "block_store" not in options or BLOCK_KEYS not in options:
            from orchestration.declarations.settings import Settings  # noqa: PLC0415

            settings = Settings()
            options.setdefault("block_store", settings.block_store_roots)
            options.setdefault(BLOCK_KEYS, ",".join(map(str, settings.block_key_references)))
        return options

    def schema(self) -> str:
        """Return the stream's columns as Spark's DDL."""
        from orchestration.spark.reading.batch_reader import columns_of_stream  # noqa: PLC0415

        # Spark does not tell here whether it will read a batch or a stream.
        options = self._checked_options() if "reader" in self.options else self._checked_options(*_OF_A_BATCH)
        return spark_schema(columns_of_stream(options.get("database_url"), options["stream"]))

    def reader(self, schema: StructType) -> ForebayReader:
        """Return a reader of the batch's blocks."""
        # UTC, as in Spark's own worker, which compares the schemas.
        return ForebayReader(self._checked_options(*_OF_A_BATCH), to_arrow_schema(schema, timezone="UTC"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """Return a named reader of the stream, for `spark.readStream`."""
        return ForebayStreamReader(self._checked_options("reader"), to_arrow_schema(schema, timezone="UTC"))
