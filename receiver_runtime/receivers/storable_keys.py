"""Make keys as the driver log takes them, and find where they repeat. Must not remember a key."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Forebay's own keys begin with it (``letter_replay``): no sender's may be taken for one of them.
_OWN = "\x1f"
# Bytes that an index of the driver log takes; a longer key is replaced by its digest.
_LONGEST_KEY_BYTES = 500


def storable(keys: pa.StringArray | Sequence[str | None]) -> pa.Array:
    """Return keys as the driver log takes them: text without NUL, of bounded length, not Forebay's; else digests."""
    taken = keys.cast(pa.string()) if isinstance(keys, pa.Array) else pa.array(keys, pa.string())
    longest = pc.max(pc.binary_length(taken)).as_py() or 0
    odd = (pc.match_substring(taken, "\0"), pc.starts_with(taken, _OWN))
    if longest <= _LONGEST_KEY_BYTES and not any(pc.any(each).as_py() for each in odd):
        return taken
    return pa.array([None if key is None else _short(key) for key in taken.to_pylist()], pa.string())


def _short(key: str) -> str:
    data = key.encode()
    if len(data) <= _LONGEST_KEY_BYTES and b"\0" not in data and not key.startswith(_OWN):
        return key
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def by_key(keys: pa.Array, unscoped_keys: pa.Array) -> Mapping[str, str]:
    """Return each key without its scope, by the key."""
    # One key may be that of thousands of rows.
    forms = [pc.unique(each) for each in (keys, unscoped_keys)]
    if len(forms[0]) != len(forms[1]):
        # Keys of several scopes are the same without them.
        forms = [keys, unscoped_keys]
    return {key: form for key, form in zip(*(each.to_pylist() for each in forms), strict=True) if key is not None}


def are_distinct(keys: pa.Array) -> bool:
    """Return whether no key is there twice."""
    return bool(pc.count_distinct(keys, mode="only_valid").as_py() == len(keys) - keys.null_count)


def repeats(keys: pa.Array, contents: pa.Array | None, seen: dict[str, object]) -> tuple[pa.Array, pa.Array]:
    """Return which rows have a key that came before, and which of these have other content than it came with.

    ``seen`` has the contents of keys that came before the first row, and gets those of the rows.
    """
    again, others = [], []
    given = [None] * len(keys) if contents is None else contents.to_pylist()
    for key, content in zip(keys.to_pylist(), given, strict=True):
        is_again = key in seen
        again.append(is_again)
        others.append(is_again and seen[key] != content)
        if key is not None:
            seen.setdefault(key, content)
    return pa.array(again, pa.bool_()), pa.array(others, pa.bool_())


def cuts(keys: pa.Array) -> Sequence[int]:
    """Return the rows before which a submit may be cut so that no key is on both sides."""
    values = keys.to_pylist()
    last = {key: row for row, key in enumerate(values) if key is not None}
    found = []
    open_until = 0
    for row, key in enumerate(values):
        open_until = max(open_until, row if key is None else last[key])
        if open_until == row:
            found.append(row + 1)
    return found
