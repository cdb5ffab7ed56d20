"""Define the receiver of ``ContainerLogs``: that of followed files, with other records."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from forebay_contrib.container_logs.declaration import ContainerLogs
from forebay_contrib.container_logs.joiner import ContainerJoiner
from forebay_contrib.container_logs.lines import BytesFraming
from receiver_runtime.receivers.files.followed.receiver import FollowedFilesReceiver
from receiver_runtime.receivers.files.records import LineReader
from receiver_runtime.sources.source import SourceError

if TYPE_CHECKING:
    from receiver_runtime.receivers.files.declaration import FollowedSource

# A line has more bytes than its text: a head, and six for a character that JSON escapes. Runtimes cut texts of 16 KiB.
_MORE_BYTES = 2**17


class ContainerLogsReceiver(FollowedFilesReceiver):
    """Receive what containers write."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = ContainerLogs.columns

    def make_line_reader(self) -> LineReader:
        """See ``FollowedFilesReceiver``."""
        return make_line_reader(self._source)


def make_line_reader(source: FollowedSource) -> LineReader:
    """Return what makes records of containers' lines. Raises SourceError: the pattern is not RE2's."""
    most = source.max_record_bytes + _MORE_BYTES
    try:
        joiner = ContainerJoiner(source.multiline, source.max_record_bytes)
    except ValueError as error:
        raise SourceError(str(error)) from error
    return LineReader(
        encoding="utf-8",
        max_record_bytes=most,
        joiner=joiner,
        framing=BytesFraming(max_record_bytes=most),
    )
