"""Read the existing blocks of the stream `lines` by a streaming query on FOREBAY_SPARK_MASTER, then end."""

from __future__ import annotations

import sys

from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import spark_session


def main(output: str) -> None:
    """Write each line to files below `output`; the checkpoint is beside it."""
    settings = Settings()
    session = spark_session(settings, application="lines")
    lines = (
        session.readStream.format("forebay")
        .option("database_url", settings.require_database_url())
        .option("block_store", settings.block_store_roots)
        .option("stream", "lines")
        .option("reader", "connected")
        .load()
    )
    query = (
        lines.writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", f"{output}-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    failure = query.exception()
    if failure is not None:
        raise failure
    sys.stdout.write("[]\n")


if __name__ == "__main__":
    main(sys.argv[1])
