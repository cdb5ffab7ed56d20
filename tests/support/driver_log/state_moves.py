"""Record every change of a state in a driver log, whichever function makes it, and compare it with the transitions.

The recorder is a trigger on each table with a state: it sees changes inside functions, and each of several changes in
one call. Writing a row with the state that it already has is not a change.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from tracker_store.schema import states

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

State = TypeVar("State", bound=StrEnum)


def _moves(transitions: Mapping[State, frozenset[State]]) -> frozenset[tuple[str, str]]:
    return frozenset(
        (old.value, new.value) for old, targets in transitions.items() for new in targets if new is not old
    )


#: For each table with a state: the moves, as (old, new), that its table of transitions allows.
MACHINES: Mapping[str, frozenset[tuple[str, str]]] = {
    "batch_attempts": _moves(states.ATTEMPT_TRANSITIONS),
    "batch_drivers": _moves(states.BATCH_DRIVER_TRANSITIONS),
    "batches": _moves(states.BATCH_TRANSITIONS),
    "log_segments": _moves(states.SEGMENT_TRANSITIONS),
    "pipelines": _moves(states.PIPELINE_TRANSITIONS),
    "receivers": _moves(states.RECEIVER_TRANSITIONS),
    "state_replays": _moves(states.STATE_REPLAY_TRANSITIONS),
}

# No unique key: two transactions that make the same move must not wait for each other.
RECORDER = """
CREATE SCHEMA moves;
CREATE TABLE moves.seen (machine text NOT NULL, old text NOT NULL, new text NOT NULL);
CREATE FUNCTION moves.see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$ BEGIN INSERT INTO moves.seen VALUES (TG_TABLE_NAME, OLD.state, NEW.state); RETURN NULL; END $$;
""" + "\n".join(
    f"CREATE TRIGGER see_move AFTER UPDATE ON forebay.{machine} FOR EACH ROW "
    "WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION moves.see();"
    for machine in MACHINES
)

SEEN = "SELECT DISTINCT machine, old, new FROM moves.seen ORDER BY machine, old, new"


def illegal_moves(seen: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the moves, given as (machine, old, new), that no table of transitions allows."""
    return [f"{machine}: {old} -> {new}" for machine, old, new in seen if (old, new) not in MACHINES[machine]]
