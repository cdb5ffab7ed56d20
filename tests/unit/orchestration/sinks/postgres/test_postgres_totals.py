"""Check what is said about a view of totals before it is made, without a database."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestration.declarations.sink import SinkError
from orchestration.sinks.postgres.postgres_totals import Totals

TOTALS = Totals("sums", by="word", sum="n")


def cursor(comment: str | None) -> Any:  # noqa: ANN401
    """Return a cursor that finds a relation with this comment; None: no relation."""
    return SimpleNamespace(execute=lambda *_: None, fetchone=lambda: None if comment is None else (comment,))


@pytest.mark.parametrize(
    ("summed", "can_be"),
    [
        *((one, True) for one in ("numeric(5,2)", "time without time zone", "oid", "interval day to second", "vector")),
        *((one, False) for one in ("text", "character varying(5)", "boolean", "date", "json", "bytea")),
        *((f"timestamp{one} with time zone", False) for one in ("", "(3)")),
    ],
)
def test_only_what_surely_has_no_sum_is_refused(summed: str, can_be: bool) -> None:
    misfits = TOTALS.misfits(cursor(None), "public", "counts", {"word": "text", "n": summed})
    assert misfits == ([] if can_be else [f"the totals sums sum n, which is {summed} and no number"])


@pytest.mark.parametrize(
    "comment", ["", "a view", '{"forebay_totals', '{"forebay_totals": {}}', '{"forebay_totals": []}', "[]", "1"]
)
def test_a_view_with_an_edited_comment_is_left_alone(comment: str) -> None:
    said = "public.sums is there, and is no view of totals"
    assert TOTALS.misfits(cursor(comment), "public", "counts", {})[0].startswith(said)
    with pytest.raises(SinkError, match=said):
        TOTALS.make(cursor(comment), "public", "counts", where="the batch")
