"""Say where a Delta table lies, a directory or a prefix of an object store, and open what is there by deltalake.

Owns the options of the store, of which secrets are references, and the proof that the store has the conditional put
that a commit is. Errors hold no secret.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay_contrib.delta.conditional_put import has_conditional_put
from forebay_contrib.delta.delta_files import DeltaFiles
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import SinkError, TargetUnavailableError
from orchestration.sinks.declared_directory import declared_directory
from orchestration.sinks.file_stores import LocalFiles
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.sources.fields.secret import Secret, SecretError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from orchestration.sinks.file_stores import FileStore

_SCHEMES = ("s3", "gs", "abfs", "abfss")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")
# Beyond letters and digits, what programs read alike in a URL: S3's own list, and the @ of Azure's containers.
_PLAIN_URL = re.compile(r"[a-z0-9]+://[A-Za-z0-9.@_-]+(?:/(?!\.\.?(?:/|$))[A-Za-z0-9!_.*'()=+@-]+)+")
_SECRET = re.compile(
    r"password|secret|token|credential|session|sas|(?:access|account|master|storage|service_account|encryption)[_-]?key",
    re.IGNORECASE,
)
# Options that say where a secret is.
_PATH = re.compile(r"(?:_file|_path|_uri|application_credentials)$", re.IGNORECASE)
_REFERENCE = ("env:", "file:/")
_UNSAFE = re.compile(r"(?:aws_)?(?:s3_)?allow_unsafe_rename", re.IGNORECASE)
_CONDITIONAL = re.compile(r"(?:aws_)?conditional_put", re.IGNORECASE)
_LOCKING = re.compile(r"(?:aws_)?s3_locking_provider", re.IGNORECASE)
_TRUTHS = ("1", "true", "on", "yes", "y")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\s+")
_MOST_SAID = 300  # characters of a store's error that are shown
_WAY_OUT = (
    "take a store that has them (Amazon S3, MinIO, R2, Google, Azure), or let DynamoDB lock commits, by "
    "storage_options={'aws_s3_locking_provider': 'dynamodb'}"
)


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Hold a table's directory, or its URL with the options of the store, as declared."""

    target: str
    options: Mapping[str, str | Secret] = field(default_factory=dict)

    @classmethod
    def declared(cls, path: str | Path, storage_options: Mapping[str, str | Secret] | None) -> TablePlace:
        """Return the place of a declaration. Raises DeclarationError."""
        options = {key: _checked(key, value) for key, value in (storage_options or {}).items()}
        found = _URL.match(path) if isinstance(path, str) else None
        if found is not None and found[1] == "uc":
            # deltalake registers the stores' clients while it holds the lock of their table: most processes hang.
            message = (
                f"DeltaSink: path {SecretUrl(str(path)).name!r} is a table of Unity Catalog, which deltalake does not "
                "open reliably with the credentials that the catalog gives: write the storage location of an external "
                "table, as s3://BUCKET/PREFIX, and the store's own credentials in storage_options"
            )
            raise DeclarationError(message)
        if found is not None and found[1] in _SCHEMES:
            target = str(path).rstrip("/")
            if SecretUrl(target).has_secret or not _PLAIN_URL.fullmatch(target):
                message = (
                    f"DeltaSink: path {SecretUrl(target).name!r}: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or "
                    "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX, with letters, digits and !_.*'()=+@- in "
                    "its names, and all else in storage_options"
                )
                raise DeclarationError(message)
            return cls(target, options)
        directory = declared_directory(
            path, "DeltaSink", otherwise=", which Spark's workers share, or s3://, gs:// or abfss:// as text"
        )
        if escape := _ESCAPED.search(str(directory)):
            message = (
                f"DeltaSink: path {str(directory)!r} has {escape[0]!r}, which Delta's readers take for a character's "
                "code: name the directory otherwise"
            )
            raise DeclarationError(message)
        if options:
            message = f"DeltaSink: storage_options are of an object store, and path {str(directory)!r} is a directory"
            raise DeclarationError(message)
        return cls(str(directory))

    @property
    def directory(self) -> Path | None:
        """Return the directory; None: it is a URL."""
        return None if _URL.match(self.target) else Path(self.target)

    @property
    def declared_options(self) -> dict[str, str]:
        """Return the options with secrets as references."""
        return {key: str(value) for key, value in self.options.items()}

    def resolved(self, where: str) -> dict[str, str] | None:
        """Return the options with their secrets; None: it is a directory. Raises TargetUnavailableError."""
        if self.directory is not None:
            return None
        try:
            return {key: value.resolve() if isinstance(value, Secret) else value for key, value in self.options.items()}
        except SecretError as error:
            raise TargetUnavailableError(f"{where}: {error}") from None

    def store(self, place: str, where: str) -> FileStore:
        """Return the files at a place that a commit names."""
        options = self.resolved(where)
        return LocalFiles(place) if options is None or not _URL.match(place) else DeltaFiles(place, options)

    def table(self, where: str) -> Any:  # noqa: ANN401  a DeltaTable
        """Return the current table, or None. Raises SinkError if deltalake can't read its log, or what that demands."""
        import deltalake  # noqa: PLC0415

        options = self.resolved(where)
        try:
            with suppress(deltalake.exceptions.TableNotFoundError):
                return deltalake.DeltaTable(self.target, storage_options=options)
            # Asked only now: a store answers each look after milliseconds.
            if deltalake.DeltaTable.is_deltatable(self.target, options):
                return deltalake.DeltaTable(self.target, storage_options=options)
            if any(name.startswith("date=") for name in self._names(options)):
                raise SinkError(
                    f"{where}: {self.target} has folders of Parquet files, as ParquetSink makes them, and readers "
                    "would see them beside the table's: give the output a directory of its own"
                )
        except deltalake.exceptions.DeltaError as error:
            raise SinkError(
                f"{where}: the Delta table {self.target} can't be opened: {self.said(error)}: give the output a table "
                "of its own"
            ) from None
        except OSError as error:
            # The cause would be printed, with what the store's answer repeats.
            kind = SinkError if options is None else TargetUnavailableError
            raise kind(f"{where}: the Delta table {self.target} can't be reached: {self.said(error)}") from None
        return None

    def check_commits(self, where: str) -> None:
        """Raise SinkError if two commits on the store could replace each other; leave nothing there.

        A commit is a conditional put, and there are servers of S3 that lack it, or ignore the condition silently.
        Amazon's, Google's and Azure's have it; another one shows it.
        """
        if not self.target.startswith("s3:") or any(_LOCKING.fullmatch(key) for key in self.options):
            return
        options = {key.lower(): value for key, value in (self.resolved(where) or {}).items()}
        try:
            found = has_conditional_put(options, self.target)
        except OSError as error:
            raise TargetUnavailableError(
                f"{where}: {self.target} takes no put that is a proof of its conditions: {self.said(error)}"
            ) from None
        if not found:
            raise SinkError(
                f"{where}: the object store of {self.target} has no conditional put, so that two writers would replace "
                f"each other's commits: {_WAY_OUT}"
            )

    def said(self, error: Exception) -> str:
        """Return an error of deltalake's in a line, without the secrets of the options."""
        text = str(error) if self.directory is None else str(error).partition("\n")[0]
        for value in self.options.values():
            if isinstance(value, Secret):
                text = text.replace(value.resolve(), f"({value})")
        return _COLOURS.sub(" ", text).strip()[:_MOST_SAID]

    def _names(self, options: Mapping[str, str] | None) -> Iterator[str]:
        """Yield the names in the place itself."""
        if options is None:
            yield from (path.name for path in Path(self.target).glob("date=*"))
            return
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415
        from pyarrow.fs import FileSelector, PyFileSystem  # noqa: PLC0415

        files = PyFileSystem(DeltaStorageHandler(self.target, dict(options)))
        yield from (info.path for info in files.get_file_info(FileSelector("", allow_not_found=True)))


def _checked(key: str, value: str | Secret) -> str | Secret:
    """Return a reference as a Secret, and a literal unchanged. Raises DeclarationError for what would be stored."""
    message = None
    if isinstance(value, Secret) or hasattr(value, "env_var_name"):
        return Secret.of(value)
    if not isinstance(value, str):
        message = f"DeltaSink: storage_options[{key!r}] is a {type(value).__name__}: write it as text"
    elif value.startswith("env:"):
        return Secret.of(value)
    elif (_SECRET.search(key) and not _PATH.search(key)) or SecretUrl(value).has_secret:
        if value.startswith(_REFERENCE):
            return Secret.of(value)
        message = (
            f'DeltaSink: storage_options[{key!r}] holds a secret, which would be stored: write EnvVar("NAME"), '
            '"env:NAME" or "file:/PATH", and keep it there'
        )
    elif _UNSAFE.fullmatch(key) and value.lower() in _TRUTHS:
        message = (
            f"DeltaSink: storage_options[{key!r}]={value!r} lets writers replace each other's commits: leave it out"
        )
    elif _CONDITIONAL.fullmatch(key) and value.lower() != "etag":
        message = (
            f"DeltaSink: storage_options[{key!r}]={value!r}: a commit is a conditional put by etag, without which "
            f"writers replace each other's: leave it out, and {_WAY_OUT}"
        )
    if message is not None:
        raise DeclarationError(message)
    return value
