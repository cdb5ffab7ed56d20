"""Declare files as sources: followed as they grow, or read once when complete, here or on an object store.

Only the declarations and their checks; ``receiver_runtime.receivers.files`` reads.
"""

from __future__ import annotations

import fnmatch
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from receiver_runtime.block_store.object_urls import S3_OPTIONS, option_fault
from receiver_runtime.sources.fields.dialects import FILE_NAMES, FILE_PATHS, PLAIN_PATHS, PLAIN_URLS, READ_FILE_NAMES
from receiver_runtime.sources.fields.multiline import MultilineField  # noqa: TC001  pydantic evaluates it
from receiver_runtime.sources.fields.secret import Secret
from receiver_runtime.sources.fields.text_encoding import TextEncoding  # noqa: TC001  pydantic evaluates it
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration
from receiver_runtime.sources.source import Guarantee, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

Seconds = Annotated[float, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_bytes)]

_LARGEST_RECORD = 256 * 2**20
_OBJECT_SCHEMES = ("s3", "gs", "abfs")
_SECRET_OPTIONS = frozenset({"access_key", "secret_key"})
_OPTIONS = tuple(sorted({*_SECRET_OPTIONS, *S3_OPTIONS}))
_URL = re.compile(r"([a-z0-9+.-]+)://")
#: Names that programs give to a file that they are still writing: browsers, WinSCP, rsync, lftp, Hadoop, editors.
UNFINISHED = (
    *("*.part", "*.partial", "*.filepart", "*.tmp", "*.temp", "*.crdownload", "*.download", "*.opdownload"),
    *("*.uploading", "*.inprogress", "*.writing", "*.aria2", "*.lftp-pget-status", "*._COPYING_"),
    *("*~", "*.swp", "*.swo", "*.swx", "#*#", ".#*"),
)

_LINE_COLUMNS = (
    ("value", "string"),
    ("path", "string"),
    ("offset", "int64"),
    ("modified_at", "timestamp[ms, tz=UTC]"),
)


def is_unfinished(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a file's name says, in letters of any case, that it is still being written."""
    name = name.lower()
    return any(fnmatch.fnmatchcase(name, pattern.lower()) for pattern in patterns)


def _check_unfinished(field: str, wanted: str, unfinished: Sequence[str]) -> None:
    """Raise ValueError where every file that is wanted has the name of one that is still being written."""
    # A wild card stands for itself here: what matches a pattern in this form matches it whatever it stands for.
    if is_unfinished(wanted, [pattern for pattern in unfinished if pattern not in ("*", "**")]):
        raise ValueError(
            f"{field}: {wanted!r} names files that `unfinished` leaves out: give unfinished=() if they are complete"
        )


class _FileSource(Source):
    """Declare the fields that all sources of files share."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    path: Annotated[str, Field(min_length=1)]
    shared: bool = False
    follow_symlinks: bool = False
    unfinished: tuple[str, ...] = UNFINISHED

    @field_validator("unfinished")
    @classmethod
    def _check_unfinished(cls, unfinished: tuple[str, ...]) -> tuple[str, ...]:
        FILE_NAMES.check(*unfinished)
        return unfinished

    @property
    def address(self) -> str:
        """Return the path, pattern or URL that is read."""
        return self.path

    @property
    def is_bound_to_host(self) -> bool:
        """Return whether each host has its own files."""
        return not self.shared and _URL.match(self.path) is None


class FollowedSource(_FileSource):
    """Declare the fields of the kinds that read files while they grow. ``FollowedFiles`` says what each one is."""

    path_is_pattern: ClassVar[bool] = True

    exclude: tuple[str, ...] = ()
    start: Literal["earliest", "latest"] = "earliest"
    max_record_bytes: Annotated[Size, Field(ge=1, le=_LARGEST_RECORD)] = 2**20
    multiline: MultilineField | None = None
    complete_after: Annotated[Seconds, Field(gt=0)] | None = None
    fingerprint_lines: Annotated[int, Field(ge=1, le=100)] = 1
    poll_interval: Annotated[Seconds, Field(gt=0)] = 1.0
    forget_after: Annotated[Seconds, Field(gt=0)] = 86_400.0

    @property
    def text_encoding(self) -> str | None:
        """Return the encoding in which a file must be text; None: its bytes may be any."""
        raise NotImplementedError

    @property
    def join_timeout(self) -> float | None:
        """Return how long a record may wait for more lines, in seconds; None: none waits."""
        return None if self.multiline is None else self.multiline.timeout

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        if not path.startswith("/"):
            raise ValueError(f"{path!r} is no absolute path: begin it with '/', as '/var/log/app/*.log*'")
        FILE_PATHS.check(path)
        return path

    @field_validator("exclude")
    @classmethod
    def _check_exclude(cls, exclude: tuple[str, ...]) -> tuple[str, ...]:
        FILE_NAMES.check(*exclude)
        return exclude

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        _check_unfinished("path", PurePosixPath(self.path).name, self.unfinished)
        return self


class FollowedFiles(FollowedSource):
    r"""Reads the lines of files that grow, as ``tail -F`` does, through rotation, truncation and compression.

    **Exactly once**: each file's position is in the driver log, and moves in the transaction that registers its lines.
    A file is identified by the beginning of its content and its inode, not by its name. What happens to bad input is
    in ``docs/reference/bad-input.md``.

    Args:
        path: a pattern of absolute paths, as ``"/var/log/app/*.log*"``; ``**`` is any number of directories. It must
            match rotated files too, otherwise lines that were not read before the rotation are lost.
        exclude: patterns of file names that are not read.
        unfinished: patterns of the names of files that are still being written, and are not read under these names:
            ``*.part``, ``*.tmp``, ``*.filepart``, ``*~``, ``*.swp`` and the like. With ``()`` every name is read.
        start: where to begin in a file that exists when the stream is first read: ``"earliest"``, or ``"latest"``.
            Files that appear later are read from their beginning.
        encoding: by any name of Python's; utf-8, utf-16, utf-32, or one whose newline is one byte, as latin-1, cp1252
            or shift_jis. A byte-order mark decides between Unicode's encodings. Stored as UTF-8.
        binary_lines: read also a file that is no text in its encoding, because a twentieth of its first 64 KiB or more
            are control characters. Otherwise it is refused, and shown in the receiver's status.
        max_record_bytes: a longer line becomes a dead letter.
        multiline: which lines belong together: ``"java"``, ``"python"`` or ``"go"`` joins those of stack traces, and
            ``Multiline(start=...)`` or ``Multiline(continuation=...)`` those of a pattern. By default each is a record.
        complete_after: a last line without its newline becomes a record when the file has not grown for this long;
            None: it is held back until its newline comes.
        fingerprint_lines: how many first lines (at most 4 KiB of them) identify a file at first; later the content
            after them counts too. Set more than one if files begin with the same lines: a file is not read before it
            has this many.
        poll_interval: how often the directory is listed; growing files are checked with each block.
        shared: each host sees the same files (a network file system). Otherwise each host has its own files, and
            receivers on another host read that host's files.
        forget_after: a file is forgotten when it has been gone for this long and its blocks are cleaned up.
        follow_symlinks: symbolic links below the directory (the part of ``path`` before the first wild card) are
            followed to files that are below it too. Otherwise no link is read, and an event names it once.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = _LINE_COLUMNS
    record_column: ClassVar[str] = "value"
    receiver_class: ClassVar[str] = "receiver_runtime.receivers.files.followed.receiver:FollowedFilesReceiver"

    kind: Literal["followed_files"] = "followed_files"
    encoding: TextEncoding = "utf-8"
    binary_lines: bool = False

    @property
    def text_encoding(self) -> str | None:
        """See ``FollowedSource``."""
        return None if self.binary_lines else self.encoding


class _ArrivingFiles(_FileSource):
    """Declare the fields of the two kinds that read complete files."""

    pattern: str = "*"
    min_age: Seconds = 2.0
    changed: Literal["ignore", "read"] = "ignore"
    max_age: Annotated[Seconds, Field(gt=0)] = 7 * 86_400.0
    poll_interval: Annotated[Seconds, Field(gt=0)] = 1.0
    options: dict[str, str] = Field(default_factory=dict)

    @property
    def is_object_store(self) -> bool:
        """Return whether the path is a URL of an object store."""
        return _URL.match(self.path) is not None

    def resolved_options(self) -> dict[str, str]:
        """Return the options, with secrets resolved now. Raises SecretError."""
        return {
            name: Secret(value).resolve() if name in _SECRET_OPTIONS else value for name, value in self.options.items()
        }

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        url = _URL.match(path)
        if url is None:
            if not PurePosixPath(path).is_absolute():
                raise ValueError(f"{path!r} is no absolute path and no URL: begin it with '/', or 's3://'")
            PLAIN_PATHS.check(path)
            return path
        if url[1] not in _OBJECT_SCHEMES:
            raise ValueError(f"{path!r} can't be read: give a directory, or one of {', '.join(_OBJECT_SCHEMES)}://")
        if "@" in path or "?" in path:
            raise ValueError("the URL has more than bucket and prefix: put the rest into options, secrets by reference")
        PLAIN_URLS.check(path)
        return path

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        READ_FILE_NAMES.check(pattern)
        return pattern

    @field_validator("options", mode="before")
    @classmethod
    def _check_options(cls, options: Any) -> Any:  # noqa: ANN401  whatever was given
        if not isinstance(options, dict):
            return options
        checked = {}
        for name, value in options.items():
            if name not in _OPTIONS:
                raise ValueError(f"options: {name} is not known: use {', '.join(_OPTIONS)}")
            if isinstance(value, str) and name not in _SECRET_OPTIONS and (why := option_fault(name, value)):
                raise ValueError(f"options: {why}")
            # A secret is kept as its reference; a literal is refused.
            checked[name] = Secret.of(value).reference if name in _SECRET_OPTIONS else value
        return checked

    @model_validator(mode="after")
    def _check_where(self) -> Self:
        _check_unfinished("pattern", self.pattern, self.unfinished)
        if self.options and not self.path.startswith("s3://"):
            raise ValueError(f"options are for s3://, and path is {self.path!r}: leave them out")
        return self


class FileLines(_ArrivingFiles):
    """Reads each file that appears in a directory, or below a prefix of an object store, once: one record per line.

    **Exactly once**: each file's position is in the driver log, and moves with the block; a file that was read to its
    end is not read again. A file must be complete when it appears: move it there under its final name, or see
    ``min_age``. What is compressed by gzip, bzip2, zstd, xz or lz4 is decompressed, whatever its name, and the files in
    a zip or tar archive are read one after the other; a bad one is put aside, with an event. Another kind without lines
    is not read, and the receiver is degraded while it is there.

    Args:
        path: a directory, or ``"s3://BUCKET/PREFIX"`` (``gs``, ``abfs`` likewise); subdirectories are read too. Names
            that begin with ``_`` or ``.`` are skipped.
        unfinished: patterns of the names of files that are still being written, and are skipped: ``*.part``, ``*.tmp``,
            ``*.filepart``, ``*~``, ``*.swp`` and the like. With ``()`` none is.
        pattern: which file names are read.
        min_age: a file is read when it has not changed for this long.
        changed: what to do with a file whose time or size has changed since it was read: ``"ignore"`` or ``"read"``.
            Both report an event.
        max_age: a file that was read is remembered as long as it exists, whatever its modification time. It is
            forgotten when it has been gone for an hour (or for ``max_age``, if that is less) and its modification time
            is at least ``max_age`` ago.
        poll_interval: how often the directory is listed.
        options: for S3: ``access_key`` and ``secret_key`` by reference, ``endpoint_override``, ``region``, ``scheme``,
            ``tls_ca_file_path``, ``force_virtual_addressing``.
        encoding: by any name of Python's; utf-8, utf-16, utf-32, or one whose newline is one byte, as latin-1, cp1252
            or shift_jis. A byte-order mark decides between Unicode's encodings. Stored as UTF-8.
        binary_lines: read also a file that is no text in its encoding, because a twentieth of its first 64 KiB or more
            are control characters. Otherwise it is refused, and shown in the receiver's status.
        max_record_bytes: a longer line becomes a dead letter.
        multiline: which lines belong together; see ``FollowedFiles``. A record ends with its file at the latest.
        shared: each host sees the same directory. An object store is always shared.
        follow_symlinks: symbolic links to files below the directory are read. Otherwise no link is, and an event names
            it once. An object store has no links.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = _LINE_COLUMNS
    record_column: ClassVar[str] = "value"
    receiver_class: ClassVar[str] = "receiver_runtime.receivers.files.receiver:FileLinesReceiver"

    kind: Literal["file_lines"] = "file_lines"
    encoding: TextEncoding = "utf-8"
    binary_lines: bool = False
    max_record_bytes: Annotated[Size, Field(ge=1, le=_LARGEST_RECORD)] = 2**20
    multiline: MultilineField | None = None


class WholeFiles(_ArrivingFiles):
    """Reads each file that appears in a directory, or below a prefix of an object store, once: one record per file.

    The arguments and the guarantee are those of ``FileLines``. A file of more than ``max_record_bytes`` becomes a dead
    letter, in parts. A compressed file is not decompressed: the record has the file's bytes.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("value", "binary"),
        ("path", "string"),
        ("modified_at", "timestamp[ms, tz=UTC]"),
    )
    record_column: ClassVar[str] = "value"
    receiver_class: ClassVar[str] = "receiver_runtime.receivers.files.receiver:WholeFilesReceiver"

    kind: Literal["whole_files"] = "whole_files"
    max_record_bytes: Annotated[Size, Field(ge=1, le=_LARGEST_RECORD)] = 16 * 2**20
