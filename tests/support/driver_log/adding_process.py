"""A process that claims a receiver and adds blocks until it is refused: ``python -m`` this module ``URL ID``.

It prints "claimed EPOCH SEQUENCE", then "added SEQUENCE" for each block that was acknowledged, then the refusal. With
a third argument N it stops for a line on its stdin once N blocks are added.
"""

from __future__ import annotations

import sys

from tests.support.driver_log.log import add, block, claim_anew
from tracker_store.blocks.blocks import AddOutcome
from tracker_store.connection.engine import connect, create_engine


def say(line: str) -> None:
    """Print one line and flush it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """See the module."""
    url, receiver_id = sys.argv[1], int(sys.argv[2])
    pause_after = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with connect(create_engine(url, application_name="adding process")) as connection:
        claimed = claim_anew(connection, receiver_id)
        say(f"claimed {claimed.epoch} {claimed.sequence}")
        sequence = claimed.sequence + 1
        while True:
            if sequence - claimed.sequence - 1 == pause_after > 0:
                sys.stdin.readline()
                pause_after = 0
            outcome = add(connection, block(claimed, sequence)).outcome
            if outcome not in (AddOutcome.ADDED, AddOutcome.ALREADY_ADDED):
                say(outcome.value)
                return
            say(f"added {sequence}")
            sequence += 1


if __name__ == "__main__":
    main()
