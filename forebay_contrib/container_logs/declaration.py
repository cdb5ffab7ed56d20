"""Declare the logs of containers: files that Kubernetes (CRI) or Docker (json-file) writes, followed as they grow.

Only the declaration; ``forebay_contrib.container_logs.receiver`` reads.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from receiver_runtime.receivers.files.declaration import FollowedSource

_PARTIAL_SECONDS = 5.0  # how long a piece of a line waits for the next one, where `multiline` says nothing


class ContainerLogs(FollowedSource):
    r"""Reads what containers write to stdout and stderr, from the files of Kubernetes (CRI) and of Docker (json-file).

    **Exactly once**, as ``FollowedFiles``, whose arguments it has, except those for encodings. The format is recognised
    line by line. Pieces of a long line are joined, for stdout and stderr each. Both are followed through rotation and
    compression. What happens to bad input is in ``forebay_contrib/container_logs/README.md``.

    Args:
        path: a pattern of absolute paths, as ``"/var/log/pods/*/*/*.log*"`` or
            ``"/var/lib/docker/containers/*/*-json.log*"``. It must match rotated files too.
        max_record_bytes: a longer text becomes a dead letter; a text of several pieces or lines is cut there.
        multiline: which lines belong together, of stdout and of stderr each: ``"java"``, ``"python"``, ``"go"``, or
            ``Multiline(start=...)``. Its timeout holds for pieces of a line too; without it that is 5 s.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("value", "string"),
        ("stream", "string"),
        ("time", "timestamp[us, tz=UTC]"),
        ("time_unix_nano", "int64"),
        ("path", "string"),
        ("offset", "int64"),
        ("modified_at", "timestamp[ms, tz=UTC]"),
    )
    record_column: ClassVar[str] = "value"
    receiver_class: ClassVar[str] = "forebay_contrib.container_logs.receiver:ContainerLogsReceiver"

    kind: Literal["container_logs"] = "container_logs"

    @property
    def text_encoding(self) -> str | None:
        """See ``FollowedSource``: each line is judged, because a program may write any bytes."""
        return None

    @property
    def join_timeout(self) -> float | None:
        """See ``FollowedSource``."""
        return _PARTIAL_SECONDS if self.multiline is None else self.multiline.timeout
