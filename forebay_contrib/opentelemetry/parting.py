"""Takes an export request of OTLP apart, so that a record that is none refuses no other.

Owns what becomes of a part that can't be read: it is rejected as it came, a resource or scope with all of its records.
What a form is made of, protobuf or JSON, is the ``Form``'s. Never changes a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from forebay_contrib.opentelemetry.signals import Level
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.pushed import RejectedRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from forebay_contrib.opentelemetry.signals import Signal
    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits

_CHECK_EVERY = 256  # how many records to read before the time is checked again


def legacy(signal: Signal) -> str:
    """Return why records are refused: what is in a field that OTLP no longer has would be left out without a word."""
    return f"its {signal.noun}s are in {signal.legacy}, which OTLP 0.20 removed: update the exporter"


class Form(Protocol):
    """Read requests of one signal and media type. Each method raises one of the ``wrong`` errors."""

    @property
    def signal(self) -> Signal:
        """Return the signal."""
        ...

    def whole(self, body: bytes) -> Any:  # noqa: ANN401  one of three kinds of message
        """Read a request at once."""

    def split(self, data: bytes, level: Level, check: Callable[[], None]) -> tuple[bytes, list[bytes]]:
        """Return a part without what is of the next level, and that, each as it was sent."""

    def without_legacy(self, data: bytes, check: Callable[[], None]) -> tuple[bytes, bool]:
        """Return a resource without records in a field that OTLP no longer has, and whether it had such."""

    def read(self, data: bytes, level: Level) -> Message:
        """Read a part of this level alone."""


def parted(
    body: bytes,
    form: Form,
    limits: ParsingLimits,
    *,
    wrong: tuple[type[Exception], ...],
    check: Callable[[Any], object],
    most_bytes: int | None = None,
) -> tuple[Any, list[RejectedRecord]]:
    """Return the request without the parts that are none, and these.

    ``check`` raises for what is none though it reads. A record of more than ``most_bytes``, as sent, is rejected too.

    Raises one of ``wrong`` if the request does not show its parts.
    """
    parting = _Parting(form, limits, wrong, check, most_bytes)
    signal = form.signal
    request = signal.kinds[Level.REQUEST]()
    for data in form.split(body, Level.REQUEST, limits.check)[1]:
        resource = parting.resource(data)
        if getattr(resource, signal.fields[Level.RESOURCE]):
            getattr(request, signal.fields[Level.REQUEST]).append(resource)
    return request, parting.rejected


class _Parting:
    """Read the parts of one request, each alone, and keep those that are none."""

    def __init__(
        self,
        form: Form,
        limits: ParsingLimits,
        wrong: tuple[type[Exception], ...],
        check: Callable[[Any], object],
        most_bytes: int | None,
    ) -> None:
        self._form = form
        self._signal = form.signal
        self._noun = form.signal.noun
        self._limits = limits
        self._wrong: tuple[type[Exception], ...] = (*wrong, RecursionError)
        self._check = check
        self._most_bytes = most_bytes
        self.rejected: list[RejectedRecord] = []

    def resource(self, data: bytes) -> Message:
        """Return a resource with its good records; without any if it is none itself."""
        if (found := self._split(data, Level.RESOURCE)) is None:
            return self._signal.kinds[Level.RESOURCE]()
        own, scopes = found
        kept, has_legacy = self._form.without_legacy(own, self._limits.check)
        if has_legacy:
            # Its other records are as good as without.
            self._reject(own if scopes else data, f"a resource of {self._noun}s is none: {legacy(self._signal)}")
        resource, fault = self._read(kept, Level.RESOURCE)
        for of_scope in scopes:
            scope = self._scope(of_scope, fault)
            if getattr(scope, self._signal.fields[Level.SCOPE]):
                getattr(resource, self._signal.fields[Level.RESOURCE]).append(scope)
        return resource

    def _scope(self, data: bytes, of_resource: str | None) -> Message:
        if (found := self._split(data, Level.SCOPE)) is None:
            return self._signal.kinds[Level.SCOPE]()
        own, records = found
        scope, of_scope = self._read(own, Level.SCOPE)
        for number, one in enumerate(records):
            if not number % _CHECK_EVERY:
                self._limits.check()
            if self._most_bytes is not None and len(one) > self._most_bytes:
                too_large = f"a {self._noun} is {len(one)} bytes: max_record_bytes is {self._most_bytes}"
                self.rejected.append(RejectedRecord(one, DeadLetterReason.RECORD_TOO_LARGE, too_large))
                continue
            record, fault = self._read(one, Level.RECORD)
            if (why := of_resource or of_scope or fault) is None:
                getattr(scope, self._signal.fields[Level.SCOPE]).append(record)
            else:
                self._reject(one, f"a {self._noun} is none: {why}")
        return scope

    def _split(self, data: bytes, level: Level) -> tuple[bytes, list[bytes]] | None:
        try:
            return self._form.split(data, level, self._limits.check)
        except self._wrong as error:
            self._reject(data, f"a {level.name.lower()} of {self._noun}s is none: {error}")
            return None

    def _read(self, data: bytes, level: Level) -> tuple[Message, str | None]:
        try:
            found = self._form.read(data, level)
            self._check(found)
        except self._wrong as error:
            return self._signal.kinds[level](), str(error) or type(error).__name__
        return found, None

    def _reject(self, data: bytes, why: str) -> None:
        self.rejected.append(RejectedRecord(data, DeadLetterReason.UNPARSABLE, why))
