"""Check what any request's parser returns: its bounds, and its rows as they would be stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver_runtime.block_path.text_check import TextCheck
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.receivers.http.acknowledgement import batch_of
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.intake import Intake
from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import MOST_REJECTED, PushRefusedError

if TYPE_CHECKING:
    from receiver_runtime.receivers.http.requests.pushed import Headers, Pushed, PushedRows
    from receiver_runtime.receivers.http.requests.records import Plain
    from receiver_runtime.receivers.http.requests.refusals import RefusedError

MOST_BYTES = 2000
_MOST_ROWS = 2000  # rows that become Python's objects, at each end
MOST_VALUES = 20_000
#: Characters of a refusal. What was sent is repeated in part, so that a sender can't make answers of any size.
LONGEST_DETAIL = 1200
REFUSALS = frozenset({400, 413, 415})


def limits() -> ParsingLimits:
    """Return limits for one body."""
    return ParsingLimits(most_values=MOST_VALUES)


def check_refusal(error: PushRefusedError | RefusedError, statuses: frozenset[int] = REFUSALS) -> None:
    """Check that a refusal can be answered, and is short."""
    status = error.status if isinstance(error, PushRefusedError) else error.refused.status
    assert status in statuses
    str(error).encode()
    assert len(str(error)) <= LONGEST_DETAIL


def check_taken(headers: Headers, parsed: Pushed | PushedRows | Plain, size: int) -> pa.RecordBatch | None:
    """Check what was taken of a body of ``size`` bytes; return the rows to store, or None."""
    rejected = parsed.rejected
    assert len(rejected) <= MOST_REJECTED
    for one in rejected:
        one.why.encode()
        assert len(one.why) <= LONGEST_DETAIL
    intake = Intake.__new__(Intake)
    intake._source = Http(listen="127.0.0.1:0", headers=("x-tenant",))
    waiting = intake.waiting_of(parsed, "/v1/events", headers, "a key", "a scope")
    if not len(waiting.bodies):
        return None
    rows: pa.RecordBatch = batch_of([waiting])
    rows.validate(full=True)
    assert TextCheck(rows.schema).is_valid(rows)
    assert rows.num_rows == len(waiting.bodies) <= size
    pa.array(waiting.row_keys(), pa.string()).validate(full=True)
    return rows


def check_rows(parsed: PushedRows, body: bytes) -> list[dict[str, Any]]:
    """Check the rows and dead letters that a protocol made of a body; return rows, of many the first and the last."""
    assert len(parsed.rejected) <= len(body)
    for one in parsed.rejected:
        one.why.encode()
        assert len(one.why) <= LONGEST_DETAIL
    parsed.batch.validate(full=True)
    assert parsed.batch.schema == arrow_schema(Http.columns)
    assert TextCheck(parsed.batch.schema).is_valid(parsed.batch)
    assert parsed.batch.num_rows <= len(body)
    assert parsed.keys is None or len(parsed.keys) == parsed.batch.num_rows
    _check_columns(parsed.batch)
    count = parsed.batch.num_rows
    last = min(max(count - _MOST_ROWS, _MOST_ROWS), count)
    rows: list[dict[str, Any]] = [*parsed.batch.slice(0, _MOST_ROWS).to_pylist(), *parsed.batch.slice(last).to_pylist()]
    return rows


def _check_columns(rows: pa.RecordBatch) -> None:
    """Check of all rows that no body is too large, and that no attributes have a name twice."""
    assert (pc.max(pc.binary_length(rows.column("body"))).as_py() or 0) <= MOST_BYTES
    attributes = pc.drop_null(rows.column("attributes"))
    names = attributes.keys.slice(attributes.offsets[0].as_py() if len(attributes) else 0)
    counts = np.diff(attributes.offsets.to_numpy())
    of_rows = pa.table({"row": np.repeat(np.arange(len(attributes)), counts), "name": names.slice(0, counts.sum())})
    assert of_rows.group_by(["row", "name"]).aggregate([]).num_rows == of_rows.num_rows


def refused(parse: object, *arguments: object, **named: object) -> Pushed | PushedRows | Plain | None:
    """Call a parser; return None if it refuses by the error that it documents, within its bounds."""
    assert callable(parse)
    try:
        found: Pushed | PushedRows | Plain = parse(*arguments, **named)
    except PushRefusedError as error:
        check_refusal(error)
        return None
    return found
