"""The settings of a Forebay process, from the environment (`FOREBAY_*`); no setting has two names.

Light: read by every process, so it loads neither Dagster nor Spark.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class DatabaseUrlMissingError(Exception):
    """No driver log: run `forebay up` in this FOREBAY_HOME (it brings a Postgres), or set FOREBAY_DATABASE_URL."""

    def __init__(self) -> None:
        """The docstring is the message."""
        super().__init__(type(self).__doc__)


class Settings(BaseSettings):
    """Per process. Every field is the environment variable `FOREBAY_` + its name in capitals."""

    model_config = SettingsConfigDict(env_prefix="FOREBAY_", extra="ignore", frozen=True)

    home: Path = Field(Path(".forebay"), description="State of this installation: embedded Postgres, blocks, logs.")
    database_url: str | None = Field(
        None, description="The driver log; without it `forebay up` runs an embedded Postgres under the home."
    )
    block_store: Path | None = Field(
        None, description="The directory that holds the blocks; <home>/blocks unless named."
    )
    module: str = Field("forebay.demo.pipeline", description="The Python module that declares your pipelines.")
    spark_master: str = Field("local[*]", description="Where batches run: a Spark master URL.")
    heartbeat_limit_seconds: float = Field(
        10.0,
        gt=1,
        description="A process is dead when its heartbeat counter has not moved for so long.",
    )

    @property
    def block_store_root(self) -> Path:
        """The block store's directory, absolute."""
        return (self.block_store or self.home / "blocks").absolute()

    def require_database_url(self) -> str:
        """The driver log's URL. Raises DatabaseUrlMissingError."""
        if self.database_url is None:
            raise DatabaseUrlMissingError
        return self.database_url
