"""Hold the declaration of an Iceberg catalog, with its secrets as references, and open it by pyiceberg."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

from forebay_contrib.iceberg.data_files import check_version
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import SinkError, TargetUnavailableError
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.sources.fields.secret import Secret, SecretError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    #: A catalog's properties: texts, references, and mappings of them, as pyiceberg's `auth` is one.
    Properties = Mapping[str, "str | Secret | Properties"]

# As a key ends: others that have such a word in them are of a time, a URL or a name.
_PLACE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*://")
_SECRET = re.compile(
    r"(password|secret|token|credential|refresh|access[-_]key(?:[-_]id)?|account[-_]key|api[-_]key|private[-_]key"
    r"|connection-string|credentials-info|authorization|cookie)$|(?:^|\.)sas-token\.",
    re.IGNORECASE,
)
# Characters. A shorter part of a secret may be any part of a text.
_LEAST_SECRET = 4


@dataclass(frozen=True, slots=True)
class DeclaredCatalog:
    """Hold the name and the properties of a catalog."""

    name: str
    properties: dict[str, Any]

    @classmethod
    def of(cls, name: str, properties: Properties) -> DeclaredCatalog:
        """Read a declaration. Raises DeclarationError if a secret is given as plain text."""
        return cls(name, _checked(properties, ""))

    def declaration(self) -> dict[str, Any]:
        """Return the properties, with secrets as references."""
        return _each(self.properties, str)

    def check_place(self, where: str) -> None:
        """Raise SinkError for a SQL catalog that would make a new table nowhere, or in the working directory."""
        warehouse = self.properties.get("warehouse", "")
        if self.properties.get("type") == "sql" and isinstance(warehouse, str) and not _PLACE.match(warehouse):
            raise SinkError(
                f"{where}: catalog['warehouse'] is {warehouse!r}, and a SQL catalog makes new tables below it: write "
                "file:///DIRECTORY, which Spark's workers share, or s3://BUCKET/PREFIX"
            )

    @contextmanager
    def opened(self, where: str) -> Iterator[Catalog]:
        """Open the catalog, which may hold connections until it is closed. Raises SinkError.

        TargetUnavailableError also if it can't be reached any more while it is open.
        """
        loaded = load_pyiceberg()
        try:
            properties = _each(self.properties, lambda value: value.resolve() if isinstance(value, Secret) else value)
        except SecretError as error:
            raise TargetUnavailableError(f"{where}: {error}") from None
        try:
            catalog = loaded.load_catalog(self.name, **properties)
        except Exception as error:  # noqa: BLE001  a catalog's client may raise anything
            kind = TargetUnavailableError if is_away(error) or isinstance(error, OSError) else SinkError
            raise kind(f"{where}: the catalog {self.name!r} can't be opened: {self.said(error)}") from None
        with closing(catalog):
            try:
                yield catalog
            except Exception as error:
                if is_away(error):
                    raise TargetUnavailableError(
                        f"{where}: the catalog {self.name!r} can't be reached: {self.said(error)}"
                    ) from None
                if type(error).__module__ != "pyiceberg.exceptions":
                    raise
                raise SinkError(f"{where}: the catalog {self.name!r} refuses it: {self.said(error)}") from None

    def table(self, catalog: Catalog, table: str, where: str) -> Table | None:
        """Return the table as it is now, or None. Raises SinkError if the catalog or its metadata can't be read."""
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415

        try:
            return catalog.load_table(table)
        except NoSuchTableError:
            return None
        except Exception as error:  # noqa: BLE001  a catalog's client may raise anything
            kind = TargetUnavailableError if is_away(error) or isinstance(error, OSError) else SinkError
            raise kind(f"{where}: the Iceberg table {table} can't be opened: {self.said(error)}") from None

    def said(self, error: Exception) -> str:
        """Return what an error says, in one line, with references in the place of secrets."""
        text = str(error)
        for secret in _secrets(self.properties):
            try:
                value = secret.resolve()
            except SecretError:
                continue
            # OAuth2's login is ID:SECRET. Messages have values as they are, in quotes, and within URLs.
            login = [] if "://" in value else value.split(":", 1)
            parts = [value, *(part for part in login if len(part) >= _LEAST_SECRET)]
            spelled = {form for part in parts for form in (part, repr(part)[1:-1], quote_plus(part))}
            for form in sorted(spelled, key=len, reverse=True):
                text = text.replace(form, f"({secret})")
        return " ".join(text.split()) or type(error).__name__


def load_pyiceberg() -> Any:  # noqa: ANN401  the module
    """Import pyiceberg's catalogs. Raises TargetUnavailableError."""
    try:
        import pyiceberg  # noqa: PLC0415  declaring a sink needs no pyiceberg
        import pyiceberg.catalog  # noqa: PLC0415
    except ImportError:
        raise TargetUnavailableError(
            "IcebergSink needs the package pyiceberg: install it where batches run, by pip install 'forebay[iceberg]'"
        ) from None
    check_version(pyiceberg.__version__)
    return pyiceberg.catalog


def is_away(error: Exception) -> bool:
    """Return whether a catalog can't be reached, or its client lacks a package."""
    from pyiceberg import exceptions  # noqa: PLC0415

    # ImportError: clients of stores import their packages when they are used first.
    away = (
        *(ImportError, exceptions.NotInstalledError, exceptions.ServiceUnavailableError),
        *(exceptions.TooManyRequestsError, exceptions.ServerError, exceptions.CommitStateUnknownException),
    )
    # Of requests, SQLAlchemy, botocore and Thrift, of which a catalog of another type has installed none.
    names = {kind.__name__ for kind in type(error).__mro__}
    unreachable = {"RequestException", "OperationalError", "HTTPClientError", "TTransportException"}
    return isinstance(error, away) or bool(names & unreachable)


def _checked(properties: Properties, above: str) -> dict[str, Any]:
    return {
        key: _checked(value, f"{above}{key}.") if isinstance(value, Mapping) else _checked_value(f"{above}{key}", value)
        for key, value in properties.items()
    }


def _checked_value(key: str, value: Any) -> str | Secret:  # noqa: ANN401  what a user gave
    """Return a reference as a Secret, and a literal unchanged. Raises DeclarationError if a literal is a secret."""
    if isinstance(value, Secret) or hasattr(value, "env_var_name"):
        return Secret.of(value)
    if not isinstance(value, str):
        message = f"IcebergSink: catalog[{key!r}] is a {type(value).__name__}: pyiceberg takes texts, as {str(value)!r}"
        raise DeclarationError(message)
    is_secret = _SECRET.search(key) or SecretUrl(value).has_secret
    if value.startswith("env:") or (is_secret and value.startswith("file:/")):
        return Secret.of(value)
    if is_secret:
        message = (
            f'IcebergSink: catalog[{key!r}] holds a secret, which would be stored: write EnvVar("NAME"), '
            '"env:NAME" or "file:/PATH", and keep it there'
        )
        raise DeclarationError(message)
    return value


def _each(properties: Mapping[str, Any], then: Any) -> dict[str, Any]:  # noqa: ANN401  a function of a value
    return {key: _each(value, then) if isinstance(value, dict) else then(value) for key, value in properties.items()}


def _secrets(properties: Mapping[str, Any]) -> Iterator[Secret]:
    for value in properties.values():
        if isinstance(value, dict):
            yield from _secrets(value)
        elif isinstance(value, Secret):
            yield value
