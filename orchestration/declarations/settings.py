"""Read the settings of a Forebay process from the environment (`FOREBAY_*`); no setting has two names.

A project's file names its module, and nothing else. Light: read by every process, so it loads neither Dagster nor
Spark.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, InstanceOf, PlainSerializer, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from orchestration.declarations.project_file import project_module
from receiver_runtime.block_store.object_urls import url_fault
from receiver_runtime.block_store.roots import OBJECT_SCHEMES, absolute_roots, not_a_directory, one_root, split_roots
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.sources.fields.secret import Secret
from receiver_runtime.sources.fields.units import parse_duration

NO_TOKEN = "off"  # noqa: S105  the value of FOREBAY_DAGSTER_TOKEN with which there is none


class DatabaseUrlMissingError(Exception):
    """No driver log: run `forebay up` in this FOREBAY_HOME (it brings a Postgres), or set FOREBAY_DATABASE_URL."""

    def __init__(self) -> None:
        """Use the class's docstring as the message."""
        super().__init__(type(self).__doc__)


class ModuleMissingError(Exception):
    """No module of pipelines is named: give one (`forebay up my_pipeline`), set FOREBAY_MODULE, or begin a project.

    `forebay new PROJECT` makes a project, whose pyproject.toml names its module. `forebay demo` runs an example in a
    home of its own.
    """

    def __init__(self) -> None:
        """Use the class's docstring as the message."""
        super().__init__(" ".join((type(self).__doc__ or "").split()))


def _duration(value: object) -> object:
    return timedelta(seconds=parse_duration(value)) if isinstance(value, str) else value


def _references(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _address(value: object) -> object:
    if not isinstance(value, str):
        return value
    address = SecretUrl(value)
    if (why := address.fault) is not None:
        raise ValueError(why)
    return address


def _roots(value: object) -> object:
    if value is None:
        return ()
    if not isinstance(value, str):
        return value
    roots = split_roots(value)
    if value.strip() and not roots:
        raise ValueError("it names no root: give a directory or a URL, or several with commas between")
    for root in roots:
        if "://" not in root and (why := not_a_directory(root)):
            raise ValueError(f"a root is no directory: {why}")
        if root.partition("://")[0] in OBJECT_SCHEMES and (why := url_fault(root)):
            raise ValueError(why)
    return tuple(SecretUrl(root) for root in roots)


def _home(value: object) -> object:
    if why := not_a_directory(str(value)):
        raise ValueError(why)
    return value


def _printed(value: SecretUrl | tuple[SecretUrl, ...] | None) -> object:
    return tuple(map(str, value)) if isinstance(value, tuple) else value and str(value)


#: An address that may have secrets in it: it is printed without them, and revealed only to what connects.
_Address = Annotated[InstanceOf[SecretUrl] | None, NoDecode, BeforeValidator(_address), PlainSerializer(_printed)]
_Roots = Annotated[tuple[InstanceOf[SecretUrl], ...], NoDecode, BeforeValidator(_roots), PlainSerializer(_printed)]


class Settings(BaseSettings):
    """Read a process's settings. Every field is the environment variable `FOREBAY_` + its name in capitals."""

    # A value that is refused may be a secret that was given itself.
    model_config = SettingsConfigDict(env_prefix="FOREBAY_", extra="ignore", frozen=True, hide_input_in_errors=True)

    home: Annotated[Path, BeforeValidator(_home)] = Field(
        Path(".forebay"), description="State of this installation: embedded Postgres, blocks, logs."
    )
    database_url: _Address = Field(
        None,
        description="The driver log; without it `forebay up` runs an embedded Postgres under the home. Behind a "
        "pooler, add its mode: ?pool_mode=session or ?pool_mode=transaction.",
    )
    database_direct_url: _Address = Field(
        None,
        description="Postgres itself, if FOREBAY_DATABASE_URL leads to a pooler: for what needs a session of its own "
        "(migrations, Dagster's tables, waiting for runs).",
    )
    block_store: _Roots = Field(
        (),
        description="Where blocks are stored: a directory or an s3://, gs:// or abfs:// URL, or several replicas "
        "separated by commas; default: <home>/blocks.",
    )
    block_key: Secret | None = Field(
        None,
        description="Encrypt stored blocks: a reference to the key, env:NAME or file:/PATH; unset: no encryption.",
    )
    block_keys_for_reading: Annotated[tuple[Secret, ...], NoDecode, BeforeValidator(_references)] = Field(
        (), description="References to keys that only decrypt blocks, separated by commas: the keys before a rotation."
    )
    module: str | None = Field(
        None,
        description="The Python module, or .py file, that declares your pipelines. Unset: what `[tool.forebay]` in the "
        "pyproject.toml of the working directory names as `module`.",
    )
    spark_master: str = Field(
        "local[*]", description="Where batches run: a Spark master URL, or sc://HOST:PORT of a Spark Connect server."
    )
    spark_configuration: dict[str, str] = Field(
        {}, description='Configuration of Spark sessions, as JSON: {"spark.executor.memory": "4g"}.'
    )
    heartbeat_limit_seconds: float = Field(
        10.0,
        gt=1,
        description="A process is declared dead when its heartbeat counter has not moved for this many seconds.",
    )
    placement_min_agents: int | None = Field(
        None,
        ge=1,
        description="Receivers are placed for the first time as soon as this many agents are there; unset: after "
        "FOREBAY_PLACEMENT_SETTLE (`forebay up`: 1).",
    )
    placement_settle: Annotated[timedelta, BeforeValidator(_duration)] = Field(
        timedelta(seconds=5),
        ge=timedelta(0),
        description="Receivers are placed for the first time when the newest agent registered this long ago, even if "
        "fewer than FOREBAY_PLACEMENT_MIN_AGENTS are there.",
    )
    rebalance: bool = Field(
        default=True,
        description="Whether the leading tracker moves receivers to agents that came later; false: only when asked, by "
        "`forebay agents rebalance`.",
    )
    rebalance_interval: Annotated[timedelta, BeforeValidator(_duration)] = Field(
        timedelta(seconds=10),
        ge=timedelta(0),
        description="The least time from the end of one such move to the next.",
    )
    rebalance_host_age: Annotated[timedelta, BeforeValidator(_duration)] = Field(
        timedelta(minutes=1),
        ge=timedelta(0),
        description="How long an agent must have been alive before receivers are moved to it, so that a host that "
        "comes and goes gets none.",
    )
    batch_driver_max_runs: int = Field(
        5_000, ge=1, description="A batch driver is replaced by a new one after this many runs, without a gap."
    )
    batch_driver_max_memory_mb: int = Field(
        3_072,
        ge=256,
        description="A batch driver is replaced by a new one when it, its JVM and its Python workers use more memory "
        "than this, in MiB.",
    )
    class_archive: bool = Field(
        default=True,
        description="Keep an archive of Spark's Java classes under the home (about 200 MB, made once, some minutes "
        "after the start): batch drivers then start in half the time.",
    )
    tracker_http: str = Field(
        "127.0.0.1:3070",
        description="HOST:PORT where each tracker serves /health, /ready, /metrics and the JSON API; port 0: any free "
        "port; off: none. Any address except loopback needs a token.",
    )
    metrics_max_receivers: int = Field(
        1_000,
        ge=0,
        description="The most receivers that have samples of their own in /metrics, the oldest first; the sums of each "
        "stream are of all.",
    )
    history_retention: Annotated[timedelta, BeforeValidator(_duration)] = Field(
        timedelta(days=14),
        description="How long the driver log shows finished batches, receivers' events and dead letters, such as 14d.",
    )
    dagster_url: _Address = Field(
        None,
        description="The webserver of the Dagster instance of `forebay up`, which sets this. There the batch sensor "
        "waits for its boundary, the tracker pushes batches, and old batch runs are pruned. Unset elsewhere.",
    )
    ui_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="The port of Dagster's webserver in `forebay up`, unless --ui-port names one; 0: any free port. "
        "Unset: 3000 if that is free, else any free one.",
    )
    dagster_token: SecretStr | None = Field(
        None,
        description="The token that the webserver of `forebay up` demands; also sent to FOREBAY_DAGSTER_URL. Unset: "
        "`forebay up` makes one, and keeps it in <home>/dagster/token; off: none, and every account of the machine may "
        "use Dagster.",
    )
    stop_gracefully_on_shutdown: bool = Field(
        default=False,
        description="Whether SIGTERM, SIGHUP and Ctrl-C let `forebay up` process what was received before it ends, as "
        "with `forebay up --drain`. The next `forebay up` goes on.",
    )
    graceful_stop_timeout: Annotated[timedelta, BeforeValidator(_duration)] = Field(
        timedelta(minutes=10),
        ge=timedelta(0),
        description="How long that may take, such as 10m: more than the longest batch interval. After it `forebay up` "
        "ends with code 1, and what is left is processed after the next start.",
    )
    tracker_token: SecretStr | None = Field(
        None, description="The token that clients of the tracker's HTTP server send: 'Authorization: Bearer TOKEN'."
    )
    tracker_write_token: SecretStr | None = Field(
        None,
        description="The token of requests that change something: pause, stop, start and restart receivers, replay a "
        "batch. It reads too. Unset: such requests are refused, also from this machine.",
    )

    @property
    def block_store_roots(self) -> str:
        """Return the block store's root, or roots separated by commas; directories are absolute.

        It has the roots' secrets, for what opens the store: print ``addresses``.
        """
        if not self.block_store:
            return one_root(self.home / "blocks")
        return absolute_roots(",".join(root.reveal() for root in self.block_store))

    @property
    def addresses(self) -> tuple[SecretUrl, ...]:
        """Return all configured addresses that may have secrets in them."""
        urls = (self.database_url, self.database_direct_url, *self.block_store, self.dagster_url)
        return tuple(url for url in urls if url is not None)

    @property
    def block_key_references(self) -> tuple[Secret, ...]:
        """Return the references to all keys that decrypt blocks, the one that encrypts them first."""
        return (*(() if self.block_key is None else (self.block_key,)), *self.block_keys_for_reading)

    @property
    def webserver_token(self) -> str | None:
        """Return the token that requests to Dagster's webserver have, if it is known here and there is one."""
        token = None if self.dagster_token is None else self.dagster_token.get_secret_value()
        return None if token is None or token.strip().lower() == NO_TOKEN else token

    def require_module(self) -> str:
        """Return the module that declares the pipelines: FOREBAY_MODULE, else the project's in the working directory.

        Raises ModuleMissingError, because no other module may stand in, and ProjectFileError.
        """
        module = self.module or project_module()
        if not module:
            raise ModuleMissingError
        return module

    def require_database_url(self) -> str:
        """Return the driver log's URL with its secrets, for what connects. Raises DatabaseUrlMissingError."""
        if self.database_url is None:
            raise DatabaseUrlMissingError
        return self.database_url.reveal()

    def with_database_url(self, url: str) -> Self:
        """Return the same settings with another driver log."""
        return self.model_copy(update={"database_url": SecretUrl(url)})
