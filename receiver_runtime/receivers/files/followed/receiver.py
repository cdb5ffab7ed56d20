"""Define the receiver of ``FollowedFiles``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from receiver_runtime.receivers.files.declaration import FollowedFiles
from receiver_runtime.receivers.files.followed.catalog import FollowedCatalog
from receiver_runtime.receivers.files.receiver import FilesReceiver
from receiver_runtime.receivers.files.records import LineReader

if TYPE_CHECKING:
    from receiver_runtime.receivers.files.declaration import FollowedSource
    from receiver_runtime.receivers.files.reader import Catalog
    from receiver_runtime.receivers.files.sharing import Sharing
    from receiver_runtime.supervisor.receiver import Receiver


class FollowedFilesReceiver(FilesReceiver):
    """Receive the lines of files that grow."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = FollowedFiles.columns

    def __init__(self, source: FollowedSource) -> None:
        super().__init__(name=source.address, per_host=not source.shared)
        self._source = source
        # Found before it begins, as any other fault of the declaration.
        self.make_line_reader()

    def make_line_reader(self) -> LineReader:
        """Return what makes records of lines. Raises SourceError."""
        assert isinstance(self._source, FollowedFiles)
        return LineReader.of(self._source)

    def make_catalog(self, receiver: Receiver, sharing: Sharing, host: str) -> Catalog:
        """Return what finds and reads the files."""
        return FollowedCatalog(self._source, self.make_line_reader(), receiver, sharing, host)
