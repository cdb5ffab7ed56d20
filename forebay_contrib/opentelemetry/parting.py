"""Takes an export request of OTLP's logs apart, so that a log record that is none refuses no other.

Owns the levels of a request, and what becomes of a part that can't be read: it is rejected as it came, a resource or
scope with all of its log records. What a form is made of, protobuf or JSON, is the ``Form``'s. Never changes a record.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.pushed import RejectedRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits

_CHECK_EVERY = 256  # how many log records to read before the time is checked again


class Level(IntEnum):
    """Name what a part of a request is."""

    REQUEST = 0
    RESOURCE = 1
    SCOPE = 2
    RECORD = 3


Message: TypeAlias = ExportLogsServiceRequest | ResourceLogs | ScopeLogs | LogRecord
KINDS: Mapping[Level, type[Message]] = {
    Level.REQUEST: ExportLogsServiceRequest,
    Level.RESOURCE: ResourceLogs,
    Level.SCOPE: ScopeLogs,
    Level.RECORD: LogRecord,
}


Part = TypeVar("Part", ResourceLogs, ScopeLogs, LogRecord)


#: Why log records are refused: what is in a field that OTLP no longer has would be left out without a word.
LEGACY = "its log records are in instrumentationLibraryLogs, which OTLP 0.20 removed: update the exporter"


class Form(Protocol):
    """Read requests of one media type. Each method raises one of the ``wrong`` errors."""

    def whole(self, body: bytes) -> ExportLogsServiceRequest:
        """Read a request at once."""

    def split(self, data: bytes, level: Level, check: Callable[[], None]) -> tuple[bytes, list[bytes]]:
        """Return a part without what is of the next level, and that, each as it was sent."""

    def without_legacy(self, data: bytes, check: Callable[[], None]) -> tuple[bytes, bool]:
        """Return a resource without log records in a field that OTLP no longer has, and whether it had such."""

    def read(self, data: bytes, level: Level) -> Message:
        """Read a part of this level alone."""


def parted(
    body: bytes,
    form: Form,
    limits: ParsingLimits,
    *,
    wrong: tuple[type[Exception], ...],
    check: Callable[[Message], object],
) -> tuple[ExportLogsServiceRequest, list[RejectedRecord]]:
    """Return the request without the parts that are none, and these. ``check`` raises for what is none though it reads.

    Raises one of ``wrong`` if the request does not show its parts.
    """
    parting = _Parting(form, limits, wrong, check)
    request = ExportLogsServiceRequest()
    for data in form.split(body, Level.REQUEST, limits.check)[1]:
        resource = parting.resource(data)
        if resource.scope_logs:
            request.resource_logs.append(resource)
    return request, parting.rejected


class _Parting:
    """Read the parts of one request, each alone, and keep those that are none."""

    def __init__(
        self,
        form: Form,
        limits: ParsingLimits,
        wrong: tuple[type[Exception], ...],
        check: Callable[[Message], object],
    ) -> None:
        self._form = form
        self._limits = limits
        self._wrong: tuple[type[Exception], ...] = (*wrong, RecursionError)
        self._check = check
        self.rejected: list[RejectedRecord] = []

    def resource(self, data: bytes) -> ResourceLogs:
        """Return a resource with its good log records; without any if it is none itself."""
        if (found := self._split(data, Level.RESOURCE)) is None:
            return ResourceLogs()
        own, scopes = found
        kept, has_legacy = self._form.without_legacy(own, self._limits.check)
        if has_legacy:
            # Its other log records are as good as without.
            self._reject(own if scopes else data, f"a resource of log records is none: {LEGACY}")
        resource, fault = self._read(kept, Level.RESOURCE, ResourceLogs)
        for of_scope in scopes:
            scope = self._scope(of_scope, fault)
            if scope.log_records:
                resource.scope_logs.append(scope)
        return resource

    def _scope(self, data: bytes, of_resource: str | None) -> ScopeLogs:
        if (found := self._split(data, Level.SCOPE)) is None:
            return ScopeLogs()
        own, records = found
        scope, of_scope = self._read(own, Level.SCOPE, ScopeLogs)
        for number, one in enumerate(records):
            if not number % _CHECK_EVERY:
                self._limits.check()
            record, fault = self._read(one, Level.RECORD, LogRecord)
            if (why := of_resource or of_scope or fault) is None:
                scope.log_records.append(record)
            else:
                self._reject(one, f"a log record is none: {why}")
        return scope

    def _split(self, data: bytes, level: Level) -> tuple[bytes, list[bytes]] | None:
        try:
            return self._form.split(data, level, self._limits.check)
        except self._wrong as error:
            self._reject(data, f"a {level.name.lower()} of log records is none: {error}")
            return None

    def _read(self, data: bytes, level: Level, kind: type[Part]) -> tuple[Part, str | None]:
        try:
            found = self._form.read(data, level)
            self._check(found)
        except self._wrong as error:
            return kind(), str(error) or type(error).__name__
        assert isinstance(found, kind)
        return found, None

    def _reject(self, data: bytes, why: str) -> None:
        self.rejected.append(RejectedRecord(data, DeadLetterReason.UNPARSABLE, why))
