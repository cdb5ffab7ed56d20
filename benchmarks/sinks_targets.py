"""Places that `benchmarks.sinks` writes to: each with a sink of Forebay's, and with a plain writer of the same rows.

A plain writer is as durable as the sink beside it: on a disk, what it has written is synced within its time.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import sqlalchemy as sa

from benchmarks.server import running_server
from forebay import DeltaSink, EnvVar, IcebergSink, ParquetSink, PostgresSink
from orchestration.sinks.postgres.postgres_staging import Address, Staging
from receiver_runtime.block_store.secret_url import SecretUrl
from tests.support.brokers.kafka import NoBrokerError
from tests.support.servers.iceberg_catalog import IcebergCatalogServer
from tests.support.servers.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, NoServerError, S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from pyspark.sql import DataFrame

    from benchmarks.report import Report
    from orchestration.declarations.sink import Sink
    from receiver_runtime.sources.fields.secret import Secret

_KEY, _SECRET, _URL, _POSTGRES = (f"FOREBAY_BENCHMARK_{name}" for name in ("KEY", "SECRET", "URL", "POSTGRES"))
_REGION = "us-east-1"
_TYPES = ("bigint", "timestamptz", "text", "double precision", "text", "timestamptz")
POSTGRES = "Postgres"
#: The tasks' COPY by itself, without Spark.
COPY = "Postgres, COPY alone"
PARQUET_ON_DISK, PARQUET_ON_S3, DELTA_ON_DISK, DELTA_ON_S3, SQL_ON_DISK, SQL_ON_S3, REST_ON_DISK, REST_ON_S3 = (
    f"{kind} on {where}" for kind in ("Parquet", "Delta", "Iceberg (SQL)", "Iceberg (REST)") for where in ("disk", "S3")
)
#: All targets, in order.
NAMES = (
    *(PARQUET_ON_DISK, DELTA_ON_DISK, SQL_ON_DISK, REST_ON_DISK, POSTGRES, COPY),
    *(PARQUET_ON_S3, DELTA_ON_S3, SQL_ON_S3, REST_ON_S3),
)


@dataclass(frozen=True, slots=True)
class Target:
    """Hold a sink, or a part of one, and what writes the same rows plainly: both take the number of a call, from 0."""

    name: str
    ours: Sink | Callable[[int], None]
    plain: Callable[[int], None]
    peer_name: str


def targets(
    frame: DataFrame, directory: Path, wanted: Collection[str], servers: ExitStack, report: Report
) -> Iterator[Target]:
    """Yield the targets of these names, each with the servers that it needs, which end with `servers`."""
    for target in _on_disk(frame, directory):
        if target.name in wanted:
            yield target
    if SQL_ON_DISK in wanted or REST_ON_DISK in wanted:
        yield from _iceberg_on_disk(frame, directory, wanted, servers, report)
    if POSTGRES in wanted or COPY in wanted:
        yield from (target for target in _postgres(frame, directory, servers) if target.name in wanted)
    if not any(name.endswith("S3") for name in wanted):
        return
    try:
        server = S3Server(directory / "s3")
    except NoServerError as error:
        report.note(f"nothing on S3: {error}")
        return
    server.start()
    servers.callback(server.kill)
    os.environ |= {_KEY: ACCESS_KEY, _SECRET: SECRET_KEY, _URL: server.url("parquet")}
    for target in _on_s3(frame, server):
        if target.name in wanted:
            yield target
    yield from _iceberg_on_s3(frame, directory / "iceberg-s3", server, wanted, servers, report)


def _on_disk(frame: DataFrame, directory: Path) -> Iterator[Target]:
    from deltalake import write_deltalake  # noqa: PLC0415  a package of an extra

    plain = directory / "plain"
    plain.mkdir()

    def parquet(number: int) -> None:
        frame.write.parquet(str(plain / f"parquet{number}"))
        sync_new(plain / f"parquet{number}")

    def delta(_: int) -> None:
        with synced(plain / "delta"):
            write_deltalake(str(plain / "delta"), frame.toArrow(), mode="append")

    yield Target(PARQUET_ON_DISK, ParquetSink(directory / "parquet"), parquet, "Spark's write.parquet, synced")
    yield Target(DELTA_ON_DISK, DeltaSink(directory / "delta"), delta, "toArrow, write_deltalake, synced")


def _on_s3(frame: DataFrame, server: S3Server) -> Iterator[Target]:
    import pyarrow.parquet as pq  # noqa: PLC0415  as Spark needs it
    from deltalake import write_deltalake  # noqa: PLC0415
    from pyarrow.fs import S3FileSystem  # noqa: PLC0415

    address = f"127.0.0.1:{server.port}"
    files = S3FileSystem(
        access_key=ACCESS_KEY, secret_key=SECRET_KEY, endpoint_override=address, scheme="http", region=_REGION
    )
    place = {"aws_endpoint_url": f"http://{address}", "aws_allow_http": "true", "aws_region": _REGION}
    options = {**place, "aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    declared: dict[str, str | Secret] = {
        **place,
        "aws_access_key_id": EnvVar(_KEY),
        "aws_secret_access_key": EnvVar(_SECRET),
    }

    def parquet(number: int) -> None:
        pq.write_table(frame.toArrow(), f"{BUCKET}/plain/parquet{number}.parquet", filesystem=files)

    def delta(_: int) -> None:
        url = f"s3://{BUCKET}/plain/delta"
        write_deltalake(url, frame.toArrow(), mode="append", storage_options=options)

    # Spark's own writer would need Hadoop's client of S3, which PySpark lacks.
    yield Target(PARQUET_ON_S3, ParquetSink(EnvVar(_URL)), parquet, "toArrow, pyarrow's write_table")
    sink = DeltaSink(f"s3://{BUCKET}/delta", storage_options=declared)
    yield Target(DELTA_ON_S3, sink, delta, "toArrow, write_deltalake")


def _iceberg_on_disk(
    frame: DataFrame, directory: Path, wanted: Collection[str], servers: ExitStack, report: Report
) -> Iterator[Target]:
    folder = directory / "iceberg"
    folder.mkdir()
    if SQL_ON_DISK in wanted:
        sql = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/sql"}
        yield _iceberg(SQL_ON_DISK, frame, sql, sql, folder)
    if REST_ON_DISK in wanted:
        rest = _rest(folder / "server", {"warehouse": f"file://{folder}/rest"}, servers, report)
        if rest is not None:
            yield _iceberg(REST_ON_DISK, frame, rest, rest, folder)


def _iceberg_on_s3(
    frame: DataFrame, folder: Path, server: S3Server, wanted: Collection[str], servers: ExitStack, report: Report
) -> Iterator[Target]:
    folder.mkdir()
    place = {"s3.endpoint": f"http://127.0.0.1:{server.port}", "s3.region": _REGION}
    secret = {"s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY}
    declared = {**place, "s3.access-key-id": f"env:{_KEY}", "s3.secret-access-key": f"env:{_SECRET}"}
    if SQL_ON_S3 in wanted:
        sql = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"s3://{BUCKET}/sql"}
        yield _iceberg(SQL_ON_S3, frame, {**sql, **declared}, {**sql, **place, **secret})
    if REST_ON_S3 in wanted:
        of_server = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.path-style-access": "true"}
        of_server |= {"warehouse": f"s3://{BUCKET}/rest", "client.region": _REGION, **place, **secret}
        rest = _rest(folder / "server", of_server, servers, report)
        if rest is not None:
            yield _iceberg(REST_ON_S3, frame, {**rest, **declared}, {**rest, **place, **secret})


def _rest(directory: Path, properties: Mapping[str, str], servers: ExitStack, report: Report) -> dict[str, str] | None:
    """Start a REST catalog and return what its clients need, or None if the machine has none."""
    try:
        server = IcebergCatalogServer(directory, properties)
        server.start()
    except NoBrokerError as error:
        report.note(f"no REST catalog: {error}")
        return None
    servers.callback(server.kill)
    return {"type": "rest", "uri": server.uri}


def _iceberg(
    name: str,
    frame: DataFrame,
    declared: Mapping[str, str],
    properties: Mapping[str, str],
    folder: Path | None = None,
) -> Target:
    """Return the target; `folder`: where its files are to be synced."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415  a package of an extra

    catalog = load_catalog("forebay", **properties)
    # As a program does that stays up, and appends now and then: it has the catalog, and reads the table's state.
    catalog.create_namespace_if_not_exists("plain")

    def plain(number: int) -> None:
        rows = frame.toArrow()
        with synced(folder):
            name = "plain.events"
            table = catalog.load_table(name) if number else catalog.create_table(name, rows.schema)
            table.append(rows)

    sink = IcebergSink("shop.events", catalog=declared)
    return Target(name, sink, plain, "toArrow, pyiceberg's append" + (", synced" if folder else ""))


def _postgres(frame: DataFrame, directory: Path, servers: ExitStack) -> Iterator[Target]:
    from pyarrow import csv  # noqa: PLC0415  as Spark needs it

    server = servers.enter_context(running_server(directory))
    url = sa.make_url(server.url).set(drivername="postgresql").render_as_string(hide_password=False)
    os.environ[_POSTGRES] = url
    file = directory / "rows.csv"
    # The rows that the sink's table has, which adds the batch's time.
    rows = frame.withColumn("_batch_time", frame["at"]).toArrow()
    csv.write_csv(rows, file, csv.WriteOptions(include_header=False))
    names = ", ".join(rows.column_names)
    command = [str(server.binaries / "psql"), "--no-psqlrc", "--quiet", "--dbname", url]
    columns = tuple(zip(rows.column_names, _TYPES, strict=True))
    made = ", ".join(f"{name} {kind}" for name, kind in columns)

    def plain(table: str, number: int) -> None:
        if number == 0:
            server.execute(f"CREATE {table} ({made})")
        copy = f"\\copy {table.rpartition(' ')[2]} ({names}) from '{file}' with (format csv)"
        subprocess.run([*command, "--command", copy], check=True, timeout=120)  # noqa: S603  our own binary

    staging = Staging(Address(SecretUrl(url), None, "benchmark"), "public", "forebay_staging_0", columns, "{}")

    def ours(number: int) -> None:
        staging.copy(f"forebay_staging_0_{number}", rows.to_batches())

    sink = PostgresSink(EnvVar(_POSTGRES), "public.events")
    yield Target(POSTGRES, sink, partial(plain, "TABLE public.plain_events"), "psql's \\copy of a CSV file")
    # Each write of ours makes a table, as a task does; both tables are unlogged.
    yield Target(COPY, ours, partial(plain, "UNLOGGED TABLE public.plain_staging"), "psql's \\copy of a CSV file")


@contextmanager
def synced(folder: Path | None) -> Iterator[None]:
    """Sync the files that are new below a folder, and the folders; None: nothing is synced."""
    before = {*_files(folder)} if folder is not None and folder.exists() else set()
    yield
    if folder is not None:
        sync_new(folder, before)


def sync_new(folder: Path, before: set[Path] | None = None) -> None:
    """Sync the files below a folder but those of before, and the folders that have them."""
    new = {*_files(folder)} - (before or set())
    for path in [*new, *{path.parent for path in new}]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
