"""Write to an Iceberg table, each batch exactly once: the table's snapshots decide.

Spark's tasks write Parquet files below the table's location, and one transaction deletes what an earlier attempt at the
batch wrote (by `_batch_time`) and adds this attempt's files. Its snapshot carries the application id of (pipeline,
output, batch time) and the attempt. The catalog accepts only one commit after a snapshot: a writer that comes second
reads the table again, and changes nothing if it has a newer attempt's commit.

Needs the package `pyiceberg`, and no connector in the JVM.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from forebay_contrib.iceberg.upkeep import has_forgotten, look_after, remembered, shorten
from orchestration.declarations.pipeline import DeclarationError
from orchestration.declarations.sink import HOURLY, Committed, Place, SinkError, TargetUnavailableError, Written
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.file_table import FileTableSink
from orchestration.sinks.parquet_staging import with_batch_time
from orchestration.sinks.refused_rows import OnBadRows, checked_choice, declared_choice
from orchestration.sinks.table_columns import check_fit, fields_in
from receiver_runtime.block_store.roots import too_long
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.sources.fields.secret import Secret, SecretError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from orchestration.declarations.sink import Figures, OutputAttempt, Upkeep
    from orchestration.sinks.parquet_staging import StagedFile

_APPLICATION = "forebay.application"
_ATTEMPT = "forebay.attempt"
_RUN = "forebay.run"
_ROWS = "forebay.rows"
_REFUSED = "forebay.refused"
_LOCATION = "forebay.location"
_SECRET = re.compile(r"password|secret|token|credential|access-key|session", re.IGNORECASE)
_REFERENCE = ("env:", "file:/")
_NEWEST_FORMAT = 2
_AMBIGUOUS = frozenset("%#?")  # in a location, which may be a URL


class IcebergSink(FileTableSink):
    """Keep an output in an Iceberg table, with the column `_batch_time`. Exactly once."""

    format: ClassVar[str] = "Iceberg"
    upkeep_every = HOURLY
    # Iceberg's smallest integer has 32 bits.
    widens: ClassVar[bool] = True

    def __init__(
        self,
        table: str,
        *,
        catalog: Mapping[str, str | Secret],
        name: str = "forebay",
        on_bad_rows: OnBadRows = "fail",
    ) -> None:
        """Declare the table.

        Args:
            table: `NAMESPACE.TABLE`; the table and its namespace are created at the first batch if they are missing.
                Its location is a directory that Spark's workers share.
            catalog: pyiceberg's properties of your catalog, such as `{"type": "sql", "uri": EnvVar("CATALOG_URI"),
                "warehouse": "file:///data/warehouse"}`; secret values as `EnvVar("NAME")`, `"env:NAME"` or (not for
                `warehouse`) `Secret("file:/PATH")`.
            name: the catalog's name, which a SQL catalog has in its own tables.
            on_bad_rows: what happens to rows with a text that is not UTF-8: "fail" fails the batch, and names them;
                "dead_letter" commits the others, and shows the refused rows as lines of JSON in `data/_refused_rows/`.

        Raises:
            DeclarationError: the table has no namespace, a secret is given as plain text, or there is no such choice.
        """
        if not all(table.split(".")) or "." not in table:
            message = f"IcebergSink: table {table!r} has no namespace: write NAMESPACE.TABLE"
            raise DeclarationError(message)
        self.table = table
        self.name = name
        self.on_bad_rows = checked_choice(on_bad_rows, "IcebergSink")
        self._catalog = {key: _checked(key, value) for key, value in catalog.items()}

    @property
    def target(self) -> str:
        """Return the table's name in its catalog."""
        return self.table

    def declaration(self) -> dict[str, Any]:
        """Return the declaration that `forebay apply` writes, with secrets as references."""
        return {
            "kind": "iceberg",
            "table": self.table,
            "catalog": self.name,
            "properties": {key: str(value) for key, value in self._catalog.items()},
            **declared_choice(self.on_bad_rows),
        }

    @classmethod
    def place(cls, declaration: Mapping[str, Any]) -> Place:
        """Return the table in its catalog: a SQL catalog has its own name in its tables."""
        properties, name = declaration["properties"], declaration["catalog"]
        catalog = [str(properties.get(key, "")) for key in ("type", "uri", "warehouse")]
        if catalog[0] in ("", "sql") or not catalog[1]:
            catalog.append(name)
        table = declaration["table"]
        return Place(("iceberg", table, *catalog), f"Iceberg table {table} of catalog {name}")

    def committed(self, attempt: OutputAttempt) -> Committed | None:
        """Return the newest attempt at this batch in the table's snapshots, if the driver log knows its run."""
        with self._connect(attempt.name) as catalog:
            found = _newest_commit(self._table(catalog, attempt.name), attempt)
        if found is None or not attempt.knows(int(found[_ATTEMPT]), found[_RUN]):
            return None
        written = Written(found[_LOCATION], int(found[_ROWS]), int(found[_REFUSED]))
        return Committed(int(found[_ATTEMPT]), written)

    def upkeep(self, turn: Upkeep) -> Figures:
        """Merge the table's small files, expire snapshots, and delete what none needs any more."""
        with self._connect(turn.name) as catalog:
            table = self._table(catalog, turn.name)
            return {} if table is None else look_after(table, turn)

    def load(self) -> None:
        """Import pyiceberg."""
        self._pyiceberg()

    def _connect(self, where: str) -> AbstractContextManager[Any]:
        # A catalog in a database holds connections until it is closed.
        return closing(self._load_catalog(where))

    def _prepare(self, connection: Any, schema: pa.Schema, attempt: OutputAttempt) -> Path:  # noqa: ANN401
        from pyiceberg.exceptions import TableAlreadyExistsError  # noqa: PLC0415

        table, whole = self._table(connection, attempt.name), with_batch_time(schema)
        if table is None:
            self._check_new(attempt.name)
            connection.create_namespace_if_not_exists(self.table.rpartition(".")[0])
            try:
                table = connection.create_table(self.table, schema=whole)
            except TableAlreadyExistsError:
                table = connection.load_table(self.table)
        return self._checked(table, schema, attempt.name) / "data"

    def _schema_of_files(self, connection: Any, schema: pa.Schema) -> pa.Schema:  # noqa: ANN401
        """Return the table's columns with their ids: by its name, a column that is renamed later would be lost."""
        import pyarrow as pa  # noqa: PLC0415
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

        there = schema_to_pyarrow(connection.load_table(self.table).schema())
        return pa.schema([there.field(name) for name in with_batch_time(schema).names])

    def _check_table(self, connection: Any, schema: pa.Schema | None, where: str) -> bool:  # noqa: ANN401
        table = self._table(connection, where)
        if table is None:
            self._check_new(where)
        else:
            self._checked(table, schema, where)
        return table is not None

    def _check_new(self, where: str) -> None:
        """Raise SinkError for a name that can't be part of the new table's directory."""
        if found := sorted(_AMBIGUOUS & set(self.table)):
            raise SinkError(
                f"{where}: the name of its Iceberg table {self.table!r} has {', '.join(found)}, which programs read in "
                "several ways in the name of its directory: name the table otherwise"
            )
        namespace, _, name = self.table.rpartition(".")
        if why := too_long(f"{namespace}.db/{name}"):
            raise SinkError(f"{where}: its Iceberg table would have a directory of its name, and {why}")

    def _columns(self, schema: StructType, where: str) -> pa.Schema:
        """Return the columns of the table's files. Raises SinkError for those that the format does not keep."""
        columns = super()._columns(schema, where)
        seen: set[str] = set()
        for path, _ in fields_in(columns):
            if path in seen:
                raise SinkError(
                    f"{where}: the name of its column {path!r} is to Iceberg also that of a field within another "
                    "column: rename one by .alias(...)"
                )
            seen.add(path)
        return columns

    def _checked(self, table: Any, schema: pa.Schema | None, where: str) -> Path:  # noqa: ANN401
        """Return the directory of a table. Raises SinkError if the sink does not write it, or columns don't fit."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

        self._check_kind(table, where)
        if schema is not None:
            check_fit(with_batch_time(schema), schema_to_pyarrow(table.schema()), name=self.table, where=where)
        return _directory(table.location(), where)

    def _check_kind(self, table: Any, where: str) -> None:  # noqa: ANN401
        """Raise SinkError if the table has what this sink does not write rightly, by its name."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

        unknown = []
        if not table.spec().is_unpartitioned():
            unknown.append(f"the partition spec {table.spec()}")
        if table.format_version > _NEWEST_FORMAT:
            unknown.append(f"format version {table.format_version}")
        required = [path for path, field in fields_in(schema_to_pyarrow(table.schema())) if not field.nullable]
        unknown += [f"the required column {path}" for path in required]
        self._refuse_table(unknown, where)

    def _try_commit(
        self,
        connection: Any,  # noqa: ANN401
        files: Sequence[StagedFile],
        schema: pa.Schema,
        attempt: OutputAttempt,
        written: Written,
    ) -> bool:
        from pyiceberg.exceptions import CommitFailedException, ValidationException  # noqa: PLC0415

        table = connection.load_table(self.table)
        found = _newest_commit(table, attempt)
        if found is not None and int(found[_ATTEMPT]) >= attempt.attempt:
            raise self.outdated(attempt, int(found[_ATTEMPT]))
        forgotten = found is None and has_forgotten(table, attempt)
        try:
            # Snapshots expire, so a later attempt deletes the batch's rows even if it finds no earlier commit.
            self._commit_to(
                table, files, schema, attempt, written, replaces=found is not None or attempt.attempt > 1 or forgotten
            )
        except (CommitFailedException, ValidationException):
            return False
        return True

    def _commit_to(
        self,
        table: Any,  # noqa: ANN401  a pyiceberg Table
        files: Sequence[StagedFile],
        schema: pa.Schema,
        attempt: OutputAttempt,
        written: Written,
        *,
        replaces: bool,
    ) -> None:
        import warnings  # noqa: PLC0415

        from pyiceberg.expressions import EqualTo  # noqa: PLC0415

        properties = {
            _APPLICATION: attempt.application_id,
            _ATTEMPT: str(attempt.attempt),
            _RUN: attempt.run_id,
            _ROWS: str(written.rows),
            _REFUSED: str(written.refused),
            _LOCATION: written.location,
        }
        # By default pyiceberg retries a conflicting commit on top of the other one, and so could put a late attempt's
        # commit on top of a newer attempt's.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        with table.transaction() as transaction:
            if replaces:
                with warnings.catch_warnings():
                    # pyiceberg warns if there is nothing to delete, which is normal here.
                    warnings.simplefilter("ignore", UserWarning)
                    transaction.delete(EqualTo(term=BATCH_TIME, value=attempt.batch_time.isoformat()))
            if files:
                # The files have new random names, so a search for duplicates in the whole table is useless.
                transaction.add_files(
                    [file.path for file in files], snapshot_properties=properties, check_duplicate_files=False
                )
            else:
                transaction.append(with_batch_time(schema).empty_table(), snapshot_properties=properties)
            shorten(transaction, table, f"{attempt.pipeline}.{attempt.output}")

    def _table(self, catalog: Any, where: str) -> Any:  # noqa: ANN401
        """Return the current table, or None. Raises SinkError if pyiceberg can't read its metadata."""
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415

        try:
            return catalog.load_table(self.table)
        except NoSuchTableError:
            return None
        except Exception as error:  # noqa: BLE001  a catalog's client may raise anything
            said = self._without_secrets(" ".join(str(error).split()))
            raise SinkError(f"{where}: the Iceberg table {self.table} can't be opened: {said}") from None

    def _pyiceberg(self) -> Any:  # noqa: ANN401
        try:
            import pyiceberg.catalog  # noqa: PLC0415  declaring a sink needs no pyiceberg
        except ImportError:
            raise TargetUnavailableError(
                "IcebergSink needs the package pyiceberg: install it where batches run, by pip install "
                "'forebay[iceberg]'"
            ) from None
        return pyiceberg.catalog

    def _load_catalog(self, where: str) -> Any:  # noqa: ANN401
        catalog = self._pyiceberg()
        try:
            properties = {
                key: value.resolve() if isinstance(value, Secret) else value for key, value in self._catalog.items()
            }
        except SecretError as error:
            raise TargetUnavailableError(f"{where}: {error}") from None
        try:
            return catalog.load_catalog(self.name, **properties)
        except Exception as error:  # noqa: BLE001  a catalog's client may raise anything
            said = self._without_secrets(str(error))
            raise SinkError(f"{where}: the catalog {self.name!r} can't be opened: {said}") from None

    def _without_secrets(self, text: str) -> str:
        for value in self._catalog.values():
            if isinstance(value, Secret):
                text = text.replace(value.resolve(), f"({value})")
        return text


def _checked(key: str, value: str | Secret) -> str | Secret:
    """Return a reference as a Secret, and a literal unchanged. Raises DeclarationError if a literal is a secret."""
    if isinstance(value, Secret) or hasattr(value, "env_var_name") or value.startswith("env:"):
        return Secret.of(value)
    if _SECRET.search(key) or SecretUrl(value).has_secret:
        if value.startswith(_REFERENCE):
            return Secret.of(value)
        message = (
            f'IcebergSink: catalog[{key!r}] holds a secret, which would be stored: write EnvVar("NAME"), '
            '"env:NAME" or "file:/PATH", and keep it there'
        )
        raise DeclarationError(message)
    return value


def _newest_commit(table: Any, attempt: OutputAttempt) -> dict[str, str] | None:  # noqa: ANN401
    """Return what the newest snapshot of an attempt at this batch says, also if it has expired, or None."""
    if table is None:
        return None
    for snapshot in sorted(table.snapshots(), key=lambda entry: -entry.sequence_number):
        properties: dict[str, str] = snapshot.summary.additional_properties if snapshot.summary else {}
        if properties.get(_APPLICATION) == attempt.application_id:
            return properties
    return remembered(table, attempt)


def _directory(location: str, where: str) -> Path:
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        raise SinkError(
            f"{where}: its Iceberg table lies at {parts.scheme}://…: IcebergSink writes to a directory that "
            "Spark's workers share, so give the catalog a warehouse of file:///DIRECTORY"
        )
    # What pyiceberg, pyarrow and Spark read of these differs.
    if parts.netloc or not parts.path.startswith("/") or _AMBIGUOUS & set(location):
        raise SinkError(
            f"{where}: its Iceberg table lies at {location!r}, which programs read in several ways: give the "
            "catalog a warehouse of file:///DIRECTORY, without %, # and ?"
        )
    return Path(parts.path)
