"""Make all calls on an object store in one place, by ``pyarrow.fs``; the counterpart of ``files``, replaced in tests.

Nothing here retries or limits how long it waits: ``object_store`` does. pyarrow's file systems are loaded only when a
store is opened, because most programs have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.object_urls import TRUTHS, url_fault
from receiver_runtime.block_store.roots import without_secrets
from receiver_runtime.block_store.secret_url import SecretUrl

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONNECT_SECONDS = 5.0
_REQUEST_SECONDS = 20.0


_REFUSED = "This URL can't be opened as an object store. Correct FOREBAY_BLOCK_STORE."


class Objects:
    """Use objects below one prefix; keys are relative to it. Every method raises ``OSError`` as pyarrow does."""

    def __init__(self, filesystem: Any, prefix: str) -> None:  # noqa: ANN401  pyarrow has no types
        self._filesystem = filesystem
        self._prefix = prefix.strip("/")

    def put(self, key: str, buffers: Sequence[Any]) -> None:
        """Store an object as a whole; on return the store has it."""
        stream = self._filesystem.open_output_stream(self._at(key))
        for buffer in buffers:
            stream.write(buffer)
        # Not by `with`: after a failed write, closing would complete the object with the bytes so far.
        stream.close()

    def get(self, key: str, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes of an object; fewer only at its end."""
        with self._filesystem.open_input_file(self._at(key)) as file:
            data: bytes = file.read_at(min(length, max(0, file.size() - offset)), offset)
        return data

    def sizes(self, prefix: str) -> list[tuple[str, int]]:
        """Return every object below a prefix as (key, size), in the order of the keys."""
        from pyarrow.fs import FileSelector, FileType  # noqa: PLC0415

        selector = FileSelector(self._at(prefix), allow_not_found=True, recursive=True)
        below = len(self._prefix) + 1
        return sorted(
            (info.path[below:], info.size)
            for info in self._filesystem.get_file_info(selector)
            if info.type == FileType.File
        )

    def bucket_exists(self) -> bool:
        """Return whether the bucket exists. In a missing bucket every object is missing."""
        return self._is_there(self._prefix.partition("/")[0])

    def has_any(self) -> bool:
        """Return whether there is anything below the prefix."""
        return self._is_there(self._prefix)

    def delete(self, prefix: str) -> None:
        """Delete every object below a prefix, if any."""
        try:
            self._filesystem.delete_dir(self._at(prefix))
        except FileNotFoundError:
            return

    def remove(self, key: str) -> None:
        """Delete one object; a missing object is no error."""
        try:
            self._filesystem.delete_file(self._at(key))
        except FileNotFoundError:
            return

    def create(self, key: str) -> Any:  # noqa: ANN401
        """Return a stream that creates an object when it is closed; one that is never closed creates none."""
        return self._filesystem.open_output_stream(self._at(key))

    def copy(self, key: str, to: str) -> None:
        """Have the store copy an object."""
        self._filesystem.copy_file(self._at(key), self._at(to))

    def place(self, key: str) -> tuple[Any, str]:
        """Return the file system and the path, for pyarrow's own readers."""
        return self._filesystem, self._at(key)

    def move(self, key: str, to: str) -> None:
        """Give an object another key."""
        self._filesystem.move(self._at(key), self._at(to))

    def _is_there(self, path: str) -> bool:
        from pyarrow.fs import FileType  # noqa: PLC0415

        return bool(self._filesystem.get_file_info(path).type != FileType.NotFound)

    def _at(self, key: str) -> str:
        return f"{self._prefix}/{key}" if key else self._prefix


def open_objects(url: str) -> Objects:
    """Return the objects below a URL; connects to nothing yet.

    Raises:
        BlockStoreError: the URL has no bucket or an unknown option, its login has a slash, or pyarrow refuses it.
    """
    if (why := url_fault(url)) is not None:
        raise BlockStoreError(why)
    try:
        if urlsplit(url).scheme == "s3":
            return _open_s3(url)
        from pyarrow.fs import FileSystem  # noqa: PLC0415

        return Objects(*FileSystem.from_uri(url))
    except (ValueError, OSError, ImportError, NotImplementedError) as error:
        said = SecretUrl(url).scrub(str(error))
        # The cause would be printed with the URL in it.
        raise BlockStoreError(f"{without_secrets(url)!r}: {said}. {_REFUSED}") from None


def _open_s3(url: str) -> Objects:
    # Not by FileSystem.from_uri, which can't set time-outs and retries.
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem  # noqa: PLC0415

    parts = urlsplit(url)
    options: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True))
    if (virtual := options.get("force_virtual_addressing")) is not None:
        options["force_virtual_addressing"] = TRUTHS[virtual.lower()]
    user, _, host = parts.netloc.rpartition("@")
    if user:
        access_key, _, secret_key = user.partition(":")
        options["access_key"], options["secret_key"] = unquote(access_key), unquote(secret_key)
    filesystem = S3FileSystem(
        **options,
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_REQUEST_SECONDS,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=2),
        # A block is one PUT: no request comes before it, and it is finished when the call returns.
        allow_delayed_open=True,
        background_writes=False,
    )
    return Objects(filesystem, f"{host}/{unquote(parts.path).strip('/')}")
