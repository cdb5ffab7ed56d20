"""Check what a consumer is said to miss, against a model of a stream that counts as JetStream does."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_contrib.nats.consumer_gaps import Reached, Seen, begun, gaps


@dataclass
class Model:
    """A stream and one consumer."""

    last: int = 0
    there: list[int] = field(default_factory=list)
    place: int = 0
    deliveries: int = 0
    missing: int = 0

    def publish(self, messages: int) -> None:
        self.there += range(self.last + 1, self.last + messages + 1)
        self.last += messages

    def remove(self, gone: list[int]) -> None:
        self.missing += sum(one > self.place for one in gone)
        self.there = [one for one in self.there if one not in gone]

    def purge(self, messages: int) -> None:
        """Remove the oldest ones as `nats stream purge` does, which moves the consumer too."""
        self.remove(self.there[:messages])
        self.place = max(self.place, self.first - 1)

    def deliver(self, messages: int) -> None:
        for one in [one for one in self.there if one > self.place][:messages]:
            self.place = one
            self.deliveries += 1

    @property
    def first(self) -> int:
        return self.there[0] if self.there else self.last + 1

    def seen(self, *, is_filtered: bool = False) -> Seen:
        removed = self.last - len(self.there)
        waiting = sum(one > self.place for one in self.there)
        return Seen(
            stream=1,
            first=self.first,
            last=self.last,
            removed=removed,
            removed_within=removed - (self.first - 1),
            consumer=1,
            place=self.place,
            deliveries=self.deliveries,
            waiting=waiting,
            unacknowledged=0,
            acknowledged=self.place,
            is_filtered=is_filtered,
        )


MOVES = st.lists(
    st.tuples(st.sampled_from(["publish", "deliver", "again", "limit", "purge", "delete", "look"]), st.integers(0, 9)),
    max_size=40,
)


def size_of(found: list[str]) -> int:
    return sum(int(one.partition("a gap of ")[2].split()[0]) for one in found)


@given(moves=MOVES, repeats=st.booleans(), is_filtered=st.booleans())
def test_the_sizes_of_gaps_are_what_was_removed_undelivered_and_nothing_else_is_a_gap(
    moves: list[tuple[str, int]], repeats: bool, is_filtered: bool
) -> None:
    model = Model()
    _, reached = gaps(None, model.seen())
    sizes = 0

    def look() -> None:
        nonlocal reached, sizes
        found, reached = gaps(reached, model.seen(is_filtered=is_filtered))
        sizes += size_of(found)
        assert sizes <= model.missing, "more than is missing"

    for move, number in moves:
        match move:
            case "publish":
                model.publish(number)
            case "deliver":
                model.deliver(number)
            case "again":
                model.deliveries += number if repeats else 0
            case "limit":
                model.remove(model.there[:number])
            case "purge":
                model.purge(number)
            case "delete":
                model.remove(model.there[number : number + 1])
            case _:
                look()
    look()
    model.publish(1)
    model.deliver(10**6)
    look()
    if not repeats and not is_filtered:
        assert sizes == model.missing


BEFORE = Reached(stream=1, consumer=1, place=10, deliveries=10, acknowledged=10, waiting=2)
# Messages 1 to 20, of which a consumer that was made again has delivered those after `place - deliveries`.
SEEN = Seen(1, 1, 20, 0, 0, 2, 20, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (SEEN, ["begins after message 20: those after 10", "a gap of up to 10 messages"]),
        (
            SEEN._replace(place=17, deliveries=2),
            ["begins after message 15: those after 10", "a gap of up to 5 messages"],
        ),
        # It repeated deliveries, and its start is declared.
        (SEEN._replace(place=17, deliveries=4, begins_after=15), ["begins after message 15"]),
        (SEEN._replace(is_filtered=True), ["begins after message 20", "a gap of unknown size"]),
        # It began where the one before ended, or before that.
        (SEEN._replace(place=17, deliveries=7), []),
        (SEEN._replace(place=17, deliveries=17), []),
        # All that it does not deliver was removed.
        (
            SEEN._replace(first=16, removed=15, place=17, deliveries=2),
            ["messages 11 up to 17, 5 of them, were removed"],
        ),
        (SEEN._replace(stream=2, consumer=1), ["the stream was created again", "after message 10", "2 were not deliv"]),
        (SEEN._replace(stream=2), ["the stream was created again", "begins after message 20: those after 0"]),
        (SEEN._replace(stream=2, place=0), ["the stream was created again"]),
        # The server crashed, and has forgotten repeated deliveries.
        (SEEN._replace(consumer=1, place=20, deliveries=5), []),
        (SEEN._replace(consumer=1, place=20, deliveries=5, keeps_newest=True, first=16, removed=15), []),
    ],
)
def test_a_consumer_or_a_stream_that_was_made_again(seen: Seen, said: list[str]) -> None:
    found, after = gaps(BEFORE, seen)
    assert bool(found) is bool(said)
    assert all(one in " ".join(found) for one in said)
    assert gaps(after, seen) == ([], after), "it is reported once"


def test_holes_from_before_it_began_are_no_gap() -> None:
    model = Model()
    model.publish(20)
    model.remove([5, 6])
    _, reached = gaps(None, model.seen())
    model.deliver(10)
    model.remove([15])
    found, reached = gaps(reached, model.seen())
    assert found == []
    model.deliver(10)
    found, reached = gaps(reached, model.seen())
    assert size_of(found) == 1
    assert reached.holes == 0


def test_what_is_acknowledged_never_goes_back() -> None:
    _, reached = gaps(BEFORE, SEEN._replace(consumer=1, place=15, deliveries=15, unacknowledged=3, acknowledged=7))
    assert (reached.place, reached.acknowledged) == (15, 10)


@pytest.mark.parametrize("is_latest", [True, False])
@pytest.mark.parametrize("says_place", [True, False])
def test_what_was_removed_before_a_consumer_was_created_is_no_gap(is_latest: bool, says_place: bool) -> None:
    model = Model()
    model.publish(1020)
    model.remove([*range(1, 1001), 1010])
    begins = model.last if is_latest else 1000
    model.place = begins
    created = model.seen() if says_place else model.seen()._replace(place=0, acknowledged=0)
    reached = begun(created, is_latest=is_latest)
    assert (reached.place, reached.acknowledged) == (begins, begins)
    found, reached = gaps(reached, created)
    assert (found, reached.place) == ([], begins)
    model.publish(10)
    model.remove([1025])
    model.deliver(10**6)
    found, reached = gaps(reached, model.seen())
    assert size_of(found) == 1


def test_what_another_receiver_was_given_at_once_is_not_acknowledged() -> None:
    seen = SEEN._replace(place=7, deliveries=7, unacknowledged=7)
    assert begun(seen, is_latest=False)[2:5] == (7, 7, 0)
