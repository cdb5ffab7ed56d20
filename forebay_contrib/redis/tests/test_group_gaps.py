"""Check what a group is said to miss, against a model of a stream that counts as Redis 7 does."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_contrib.redis.group_gaps import (
    Reached,
    Seen,
    advanced,
    another_stream,
    first_seen,
    gap_of_group,
    gap_of_trimmed,
    id_of,
    is_another_stream,
    number_of,
)
from tests.support.searches import examples


@dataclass
class Model:
    """A stream and one group. An id is the number of the entry, so what is missing is easy to count."""

    added: int = 0
    there: list[int] = field(default_factory=list)
    position: int = 0
    read: int = 0
    missing: int = 0
    #: Redis 7.4 counts again where a group goes on behind trimmed entries; Redis 7.0 only where it has read none.
    counts_again: bool = False
    recounts: int = 0

    def add(self, entries: int) -> None:
        self.there += range(self.added + 1, self.added + entries + 1)
        self.added += entries

    def give(self, entries: int) -> None:
        for entry in [one for one in self.there if one > self.position][:entries]:
            is_behind_trimmed = self.position < self.there[0] - 1
            if is_behind_trimmed and (self.counts_again or not self.position):
                self.read = self.added - len(self.there)
                self.recounts += 1
            self.read += 1
            self.position = entry

    def trim(self, keep: int) -> None:
        gone, self.there = self.there[: len(self.there) - keep], self.there[len(self.there) - keep :]
        self.missing += sum(one > self.position for one in gone)

    def do(self, move: str, number: int) -> None:
        match move:
            case "add":
                self.add(number)
            case "give":
                self.give(number)
            case "trim":
                self.trim(min(number, len(self.there)))
            case "trim given":
                self.trim(sum(one > self.position for one in self.there))

    def seen(self, *, counts: bool = True) -> Seen:
        first = self.there[0] if self.there else None
        counted = (self.added, self.read) if counts else (None, None)
        return Seen(self.position, self.added, first, len(self.there), *counted)


MOVES = st.lists(
    st.tuples(st.sampled_from(["add", "give", "trim", "trim given", "look"]), st.integers(0, 9)), max_size=40
)


@pytest.mark.search
@settings(max_examples=examples(2000))
@given(moves=MOVES, counts=st.booleans(), counts_again=st.booleans())
def test_the_sizes_of_gaps_are_what_was_trimmed_unread_and_nothing_else_is_a_gap(
    moves: list[tuple[str, int]], counts: bool, counts_again: bool
) -> None:
    model = Model(counts_again=counts_again)
    reached = first_seen(model.seen(counts=counts))
    found: list[int | None] = []
    seen_missing = looked_at = 0
    is_late = False

    def look() -> None:
        nonlocal reached, seen_missing, looked_at
        seen = model.seen(counts=counts)
        assert not is_another_stream(reached, seen)
        gap, reached = gap_of_trimmed(reached, seen)
        reached = advanced(reached, seen)
        if gap is not None:
            found.append(gap.size)
            # What is not counted may be reported in two parts.
            assert model.missing > (seen_missing if counts else 0), "nothing was trimmed unread since the last gap"
            seen_missing = model.missing
        looked_at = model.missing
        assert sum(size or 0 for size in found) <= model.missing

    for move, number in moves:
        recounts = model.recounts
        model.do(move, number)
        if move == "look":
            look()
        # The server has forgotten what was trimmed before a receiver looked.
        is_late = is_late or (model.recounts > recounts and model.missing > looked_at)
    look()
    # At the end of the stream Redis has counted all. Where it counts again, a second gap may seem smaller.
    model.give(10**6)
    look()
    if counts:
        sizes = [size or 0 for size in found]
        assert None not in found
        assert is_late or bool(sizes) is bool(model.missing)
        assert model.recounts or sum(sizes) == model.missing
    else:
        assert set(found) <= {None}


def test_a_smaller_gap_after_one_that_the_server_has_forgotten_is_counted() -> None:
    model = Model(counts_again=True)
    reached = first_seen(model.seen())
    model.add(20)
    sizes = []
    for keep in (15, 7):
        model.trim(keep)
        gap, reached = gap_of_trimmed(reached, model.seen())
        reached = advanced(reached, model.seen())
        sizes.append(gap and gap.size)
        model.give(5)
    assert sizes == [5, 3]


@pytest.mark.parametrize(
    ("before", "seen", "gap"),
    [
        # Redis 6.2 counts nothing: entries that waited at the last look and are not there any more are a gap.
        (Reached(through=10, last=15), Seen(10, 20, 18, 3), "entries after 0-10 up to 0-15 were trimmed"),
        (Reached(through=10, last=15), Seen(10, 20, 15, 6), None),
        (Reached(through=10, last=15), Seen(17, 20, 18, 3), None),
        (Reached(through=15, last=15), Seen(15, 20, 18, 3), None),
        # Added and trimmed since the last look: an empty stream knows its newest entry.
        (Reached(through=10, last=10), Seen(10, 20, None, 0), "entries after 0-10 up to 0-20 were trimmed"),
        (Reached(through=20, last=10), Seen(20, 20, None, 0), None),
        (first_seen(Seen(10, 20, None, 0)), Seen(10, 20, None, 0), None),
        # Deleted in the middle of what is there: Redis knows the newest one only.
        (Reached(through=10, last=15, added=15), Seen(10, 20, 1, 18, 20, 10, 14), "the last one 0-14, were deleted"),
        (Reached(through=10, last=15, added=15, deleted=14), Seen(10, 20, 1, 18, 20, 10, 14), None),
        (Reached(through=10, last=15, added=15), Seen(10, 20, 1, 18, 20, 10, 9), None),
    ],
)
def test_what_redis_does_not_count_is_a_gap_of_unknown_size(before: Reached, seen: Seen, gap: str | None) -> None:
    found, after = gap_of_trimmed(before, seen)
    assert (found is None) if gap is None else (gap in str(found) and "a gap of unknown size" in str(found))
    assert gap_of_trimmed(advanced(after, seen), seen)[0] is None, "it is reported once"


# Entries 1 to 9, of which 3 were read; then 6 was deleted, which Redis can't count yet.
DELETED = Seen(3, 9, 1, 8, 9, 3, 6)


@pytest.mark.parametrize(
    ("later", "said"),
    [
        # Read on, to before it, past it, and to the end, where Redis counts it.
        ([Seen(5, 9, 1, 8, 9, 5, 6), Seen(8, 9, 1, 8, 9, 7, 6), Seen(9, 9, 1, 8, 9, 8, 6)], []),
        # What was trimmed since has another id, or comes after Redis has counted it.
        ([Seen(3, 9, None, 0, 9, 3, 6)], ["entries after 0-3 up to 0-9 were trimmed"]),
        ([Seen(3, 9, 7, 3, 9, 3, 6), Seen(3, 9, 9, 1, 9, 3, 6)], ["2 entries after 0-3 were trimmed"]),
        ([Seen(3, 9, 1, 7, 9, 3, 8), Seen(9, 9, 1, 7, 9, 7, 8)], ["the last one 0-8, were deleted"]),
        ([Seen(9, 9, 1, 8, 9, 8, 6), Seen(9, 12, 12, 1, 12, 8, 6)], ["2 entries after 0-9 were trimmed"]),
    ],
)
def test_what_was_reported_without_a_size_is_not_reported_again_with_one(later: list[Seen], said: list[str]) -> None:
    gap, reached = gap_of_trimmed(Reached(through=3, last=9, added=9, rank=3), DELETED)
    assert "a gap of unknown size" in str(gap)
    reached = advanced(reached, DELETED)
    found = []
    for seen in later:
        gap, reached = gap_of_trimmed(reached, seen)
        reached = advanced(reached, seen)
        found += [] if gap is None else [str(gap)]
    assert [one for one in said if one not in " ".join(found)] == []
    assert len(found) == len(said)


@pytest.mark.parametrize(
    ("seen", "gap"),
    [
        # Nothing behind what was read is missing.
        (Seen(0, 20, 9, 12, 20, None), None),
        (Seen(0, 12, None, 0, 12, None), "were trimmed or deleted meanwhile (a gap of 2 entries)"),
        (Seen(0, 20, 16, 5, 20, None), "were trimmed or deleted meanwhile (a gap of 5 entries)"),
        (Seen(0, 20, 16, 5), "a gap of unknown size"),
        (Seen(0, 10, None, 0, 10, None), None),
        (Seen(0, 0, None, 0, 0, None), "the stream was deleted and made again"),
        (Seen(0, 30, 28, 3, 3, None), "was not read is lost, 2 when it was last seen (a gap of unknown size)"),
    ],
)
def test_a_group_that_was_gone(seen: Seen, gap: str | None) -> None:
    before = Reached(through=10, last=12, added=12, rank=10)
    if seen.last == 10:
        before = Reached(through=10, last=10, added=10, rank=10)
    found = gap_of_group(before, seen)
    assert "a gap of unknown size" in str(gap_of_group(Reached(), seen))
    assert (found is None) if gap is None else gap in str(found)


def test_what_was_trimmed_before_the_group_began_or_is_read_again_is_no_gap() -> None:
    seen = Seen(position=0, last=20, first=11, length=10, added=20, read=0)
    begun = first_seen(seen)
    assert gap_of_trimmed(begun, seen) == (None, begun)
    # Set back by someone, after all was read.
    assert gap_of_trimmed(Reached(through=20, last=20, added=20, rank=20), seen)[0] is None
    later = seen._replace(first=16, length=5)
    gap, after = gap_of_trimmed(begun, later)
    assert gap is not None
    assert (gap.size, gap_of_trimmed(after, later)[0]) == (5, None)


def test_what_was_deleted_before_the_group_was_known_is_no_gap_and_what_is_deleted_later_is() -> None:
    """Take entries 1 to 9, of which 6 was deleted first; Redis can't count what the group reads before it."""
    begun = first_seen(Seen(0, 9, 1, 8, 9, 1, 6))
    seen = Seen(3, 9, 1, 8, 9, None, 6)
    gap, reached = gap_of_trimmed(begun, seen)
    assert gap is None
    gap, _ = gap_of_trimmed(advanced(reached, seen), seen._replace(length=7, deleted=8))
    assert "the last one 0-8, were deleted" in str(gap)


def test_a_stream_that_was_made_again_is_told_by_its_newest_id_or_its_number_of_entries() -> None:
    before = Reached(through=10, last=12, added=12)
    assert is_another_stream(before, Seen(0, 11, 1, 11, 11))
    assert is_another_stream(before, Seen(0, 40, 40, 1, 1))
    assert not is_another_stream(before, Seen(0, 12, 12, 1))
    assert "what it had after 0-10" in str(another_stream(before))


def test_ids_are_compared_as_numbers() -> None:
    assert number_of(b"9-10") > number_of(b"9-9") > number_of(b"8-11")
    assert [id_of(number_of(one)) for one in (b"9-10", b"1526919030474-3")] == ["9-10", "1526919030474-3"]
