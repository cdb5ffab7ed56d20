"""Divide what goes into many statements of the driver log."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Item = TypeVar("Item")

#: How many blocks, or dead letters, go into one statement.
GROUP = 500


def groups(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items in order, in lists of ``GROUP``."""
    group: list[Item] = []
    for item in items:
        group.append(item)
        if len(group) == GROUP:
            yield group
            group = []
    if group:
        yield group
