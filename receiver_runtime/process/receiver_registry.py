"""Make the receiver that reads a source from its declaration."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from receiver_runtime.sources.declarations.base import SourceError
from receiver_runtime.sources.declarations.custom import CustomSource
from receiver_runtime.supervisor.receiver import Receiver

if TYPE_CHECKING:
    from receiver_runtime.sources.declarations.base import Source


def make_receiver(source: Source) -> Receiver:
    """Return a receiver for a source, not yet attached.

    Raises:
        SourceError: no receiver reads it, its client is not installed, or a user's class is missing or can't be made.
    """
    if isinstance(source, CustomSource):
        return _make_custom(source)
    if not source.receiver_class:
        raise SourceError(f"kind: nothing here receives from {source.kind!r}: upgrade this host's Forebay")
    module, _, name = source.receiver_class.partition(":")
    made: Receiver = getattr(importlib.import_module(module), name)(source)
    return made


def _make_custom(source: CustomSource) -> Receiver:
    receiver_class = source.load()
    if not issubclass(receiver_class, Receiver):
        raise SourceError(f"receiver: {source.receiver!r} is no receiver: make it a child of forebay.receiver.Receiver")
    try:
        return receiver_class(**source.options)
    except Exception as error:  # a user's code
        raise SourceError(
            f"receiver: {source.receiver!r} can't be made with the options {source.options!r}: "
            f"{type(error).__name__}: {error}"
        ) from error
