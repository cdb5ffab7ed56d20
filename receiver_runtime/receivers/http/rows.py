"""Make the rows of a request, with the columns of ``Http``, column by column: for protocols with attributes.

A record costs no object of its own but its texts. Never parses anything.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import numpy as np
import pyarrow as pa

from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.intake import NO_PARAMETERS, kept_attributes
from receiver_runtime.receivers.http.requests.idempotency_key import key_header
from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH, TARGET_QUERY, PushRefusedError, header

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from receiver_runtime.receivers.http.intake import Parameters
    from receiver_runtime.receivers.http.requests.pushed import Headers

_SCHEMA = arrow_schema(Http.columns)
_TYPES = {field.name: field.type for field in _SCHEMA}
_ROW_BYTES = 40  # what a row counts for beside its texts
_MOST_ROWS_BYTES = 2**31 - 1  # of a column of bytes, and of all texts in a column


def target_path(headers: Headers) -> str:
    """Return the path of a request whose route has a path of its own."""
    return next((value.decode() for name, value in headers if name == TARGET_PATH), "")


def parameters(headers: Headers) -> Parameters:
    """Return the parameters of the query of a request whose route has a path of its own."""
    query = next((value for name, value in headers if name == TARGET_QUERY), b"")
    return parse_qs(query.decode(errors="replace"), keep_blank_values=True) if query else NO_PARAMETERS


def key_of_body(protocol: str, headers: Headers, body: bytes, source: Http) -> str | None:
    """Return a key for a request whose bytes are the same only if its records are; None if its sender gives one."""
    name = key_header(source.key_from)
    if name and header(headers, name.lower().encode()) is not None:
        return None
    return f"{protocol} {hashlib.sha256(body).hexdigest()}"


class Rows:
    """Gather the rows of a request with these headers, its path and query among them.

    All rows together have at most ``max_waiting_bytes``: what a request has once, each of its rows has. Each also has
    the headers and parameters that the source keeps.
    """

    def __init__(self, headers: Headers, source: Http) -> None:
        self._path = target_path(headers)
        self._kept = dict(kept_attributes(source, headers, parameters(headers)) or {})
        self._most_bytes = min(source.max_waiting_bytes, _MOST_ROWS_BYTES)
        self._size = 0
        self.bodies: list[bytes] = []
        self._names: list[str] = []
        self._values: list[str] = []
        self._ends: list[int] = [0]

    def add_shared(self, attributes: Mapping[str, str]) -> tuple[Sequence[str], Sequence[str], int]:
        """Return attributes that several rows have, with those of every row, in the form that ``add`` takes."""
        both = {**self._kept, **attributes}
        return list(both), list(both.values()), sum(map(len, both)) + sum(map(len, both.values()))

    def add(
        self,
        body: bytes,
        shared: tuple[Sequence[str], Sequence[str], int],
        names: Sequence[str] = (),
        values: Sequence[str] = (),
    ) -> None:
        """Add a row. Its own attributes have other names than the shared ones, but may have one that the source keeps.

        Raises PushRefusedError: 413, the rows are too large together.
        """
        if names and self._kept and not self._kept.keys().isdisjoint(names):
            others = {name: value for name, value in zip(shared[0], shared[1], strict=True) if name not in names}
            shared = (list(others), list(others.values()), shared[2])
        self.bodies.append(body)
        self._names += shared[0]
        self._values += shared[1]
        size = len(body) + shared[2] + _ROW_BYTES
        if names:
            self._names += names
            self._values += values
            size += sum(map(len, names)) + sum(map(len, values))
        self._ends.append(len(self._names))
        self._grow(size)

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._most_bytes:
            raise PushRefusedError(
                413,
                f"body: more than {self._most_bytes} bytes of records, each with its attributes, which is "
                "max_waiting_bytes: send fewer at once",
            )

    def batch(self, content_type: str | Sequence[str], ids: Iterable[str | None] | None = None) -> pa.RecordBatch:
        """Return the rows that were added, as a batch. Their content type is one for all, or one for each."""
        attributes = pa.nulls(len(self.bodies), _TYPES["attributes"])
        if self._names:
            attributes = pa.MapArray.from_arrays(
                pa.array(np.array(self._ends, np.int32)),
                pa.array(self._names, pa.string()),
                pa.array(self._values, pa.string()),
            )
        return self._batch(pa.array(self.bodies, pa.binary()), content_type, attributes, ids)

    def batch_of(self, bodies: pa.BinaryArray, content_type: str, shared: Mapping[str, str]) -> pa.RecordBatch:
        """Return rows that have the same attributes, as a batch. Raises PushRefusedError: 413, as ``add``."""
        both = {**self._kept, **shared}
        each = _ROW_BYTES + sum(map(len, both)) + sum(map(len, both.values()))
        self._grow(sum(buffer.size for buffer in bodies.buffers() if buffer is not None) + each * len(bodies))
        attributes = pa.repeat(pa.scalar(list(both.items()), _TYPES["attributes"]), len(bodies))
        return self._batch(bodies, content_type, attributes, None)

    def batch_in_groups(
        self,
        bodies: pa.BinaryArray,
        content_type: str,
        groups: Sequence[Mapping[str, str]],
        codes: npt.NDArray[np.int32],
        ids: Sequence[str | None] | None,
    ) -> pa.RecordBatch:
        """Return rows as a batch, each with the attributes of one group. Raises PushRefusedError: 413, as ``add``.

        Args:
            bodies: the rows' bodies.
            content_type: of all rows.
            groups: the attributes that rows have.
            codes: for each row, the place of its group.
            ids: for each row, its id; None: no row has one.
        """
        both = [{**self._kept, **attributes} for attributes in groups]
        sizes = np.array([_ROW_BYTES + sum(map(len, one)) + sum(map(len, one.values())) for one in both])
        self._grow(int(sizes[codes].sum()) + sum(buffer.size for buffer in bodies.buffers() if buffer is not None))
        attributes = pa.array([list(one.items()) for one in both], _TYPES["attributes"]).take(pa.array(codes))
        return self._batch(bodies, content_type, attributes, ids)

    def _batch(
        self,
        bodies: pa.BinaryArray,
        content_type: str | Sequence[str],
        attributes: pa.MapArray,
        ids: Iterable[str | None] | None,
    ) -> pa.RecordBatch:
        rows = len(bodies)
        now = pa.scalar(time.time_ns() // 1000, pa.int64()).cast(_TYPES["received_at"])
        columns = {
            "body": bodies,
            "content_type": pa.repeat(pa.scalar(content_type, pa.string()), rows)
            if isinstance(content_type, str)
            else pa.array(content_type, pa.string()),
            "path": pa.repeat(pa.scalar(self._path, pa.string()), rows),
            "received_at": pa.repeat(now, rows),
            "id": pa.nulls(rows, pa.string()) if ids is None else pa.array(ids, pa.string()),
            "attributes": attributes,
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in _SCHEMA.names], schema=_SCHEMA)
