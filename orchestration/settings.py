"""The settings of a Forebay process, from the environment (`FOREBAY_*`); no setting has two names.

Light: read by every process, so it loads neither Dagster nor Spark.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from receiver_runtime.block_store.roots import absolute_roots, one_root


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
    block_store: str | None = Field(
        None,
        description="Where the blocks lie: a directory or an s3://, gs:// or abfs:// URL, or several, with "
        "commas between them, that are replicas; <home>/blocks unless named.",
    )
    module: str = Field("forebay.demo.pipeline", description="The Python module that declares your pipelines.")
    spark_master: str = Field("local[*]", description="Where batches run: a Spark master URL.")
    heartbeat_limit_seconds: float = Field(
        10.0,
        gt=1,
        description="A process is dead when its heartbeat counter has not moved for so long.",
    )
    tracker_http: str = Field(
        "127.0.0.1:3070",
        description="HOST:PORT where each tracker serves /health, /ready, /metrics and the JSON API; port 0: any free "
        "one; off: none. Elsewhere than on loopback it needs a token.",
    )
    tracker_token: SecretStr | None = Field(
        None, description="What a client of the tracker's HTTP server has to send: 'Authorization: Bearer TOKEN'."
    )

    @property
    def block_store_roots(self) -> str:
        """The block store's root, or roots with commas between them; directories are absolute."""
        return absolute_roots(self.block_store) if self.block_store else one_root(self.home / "blocks")

    def require_database_url(self) -> str:
        """The driver log's URL. Raises DatabaseUrlMissingError."""
        if self.database_url is None:
            raise DatabaseUrlMissingError
        return self.database_url
