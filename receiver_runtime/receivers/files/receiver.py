"""Define the receivers of ``FileLines`` and ``WholeFiles``, and what they share with that of ``FollowedFiles``.

They own the reader of each ``on_start``, which owns its thread and its open files (``reader``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote, urlencode

from receiver_runtime.block_store.stores.objects import open_objects
from receiver_runtime.receivers.files.arriving import ArrivingCatalog
from receiver_runtime.receivers.files.declaration import FileLines, WholeFiles
from receiver_runtime.receivers.files.folders import LocalFolder, ObjectFolder
from receiver_runtime.receivers.files.reader import FilesReader
from receiver_runtime.receivers.files.records import LineReader
from receiver_runtime.receivers.run_receiver import RunReceiver

if TYPE_CHECKING:
    from receiver_runtime.receivers.files.folders import Folder
    from receiver_runtime.receivers.files.reader import Catalog
    from receiver_runtime.receivers.files.sharing import Sharing
    from receiver_runtime.supervisor.receiver import Receiver


class FilesReceiver(RunReceiver):
    """Implement what the receivers of files have in common."""

    def __init__(self, *, name: str, per_host: bool) -> None:
        super().__init__()
        self._name = name
        self._per_host = per_host

    def make_run(self) -> FilesReader:
        """Return a reader. Its ``stop`` returns when what it handed on is registered, and every file is closed."""
        return FilesReader(self, self.make_catalog, name=self._name, per_host=self._per_host)

    def make_catalog(self, receiver: Receiver, sharing: Sharing, host: str) -> Catalog:
        """Return what finds and reads the files, for one run."""
        raise NotImplementedError


class _ArrivingFilesReceiver(FilesReceiver):
    def __init__(self, source: FileLines | WholeFiles) -> None:
        super().__init__(name=source.address, per_host=not (source.shared or source.is_object_store))
        self._source = source

    def make_catalog(self, receiver: Receiver, sharing: Sharing, host: str) -> Catalog:
        """Return what finds and reads complete files."""
        return ArrivingCatalog(self._source, receiver, sharing, host, folder=_folder_of(self._source))


class FileLinesReceiver(_ArrivingFilesReceiver):
    """Receive the lines of complete files."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = FileLines.columns

    def __init__(self, source: FileLines) -> None:
        super().__init__(source)
        LineReader.of(source)


class WholeFilesReceiver(_ArrivingFilesReceiver):
    """Receive complete files, each as one record."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = WholeFiles.columns


def _folder_of(source: FileLines | WholeFiles) -> Folder:
    """Return the folder of a source. Raises SecretError and BlockStoreError."""
    if not source.is_object_store:
        return LocalFolder(source.path, follow_symlinks=source.follow_symlinks)
    options = source.resolved_options()
    keys = [quote(options.pop(name, ""), safe="") for name in ("access_key", "secret_key")]
    scheme, _, rest = source.path.partition("://")
    user = f"{keys[0]}:{keys[1]}@" if any(keys) else ""
    url = f"{scheme}://{user}{rest}"
    if options:
        url += f"?{urlencode(options)}"
    return ObjectFolder(*open_objects(url).place(""), source.path)
