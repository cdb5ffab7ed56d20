"""Test which connection may go on with its message."""

from __future__ import annotations

from forebay_contrib.fluent_forward.held_bytes import HeldBytes


def test_a_peer_has_half_of_the_room_and_gets_on_with_its_first_message() -> None:
    held = HeldBytes(100)
    for holder in ("a", "b", "c"):
        assert not held.note("one", holder, 20)
        assert held.has_room_for("one", holder) == (holder != "c")
    assert held.has_room_for("one", "a")
    assert not held.has_room_for("one", "b")
    # Nothing is held of it.
    assert held.has_room_for("one", "d")
    held.note("two", "e", 30)
    assert held.has_room_for("two", "e")
    # The first message is whole, and the connection's next one has begun.
    assert held.note("one", "a", 18)
    assert [held.has_room_for("one", holder) for holder in ("a", "b", "c")] == [False, True, False]
    held.note("two", "e", 50)
    assert not any(held.has_room_for(*one) for one in (("two", "e"), ("one", "b")))
    for one in (("one", "a"), ("one", "b"), ("one", "c"), ("two", "e")):
        assert held.note(*one, 0)
        assert not held.note(*one, 0)
    assert held.total == 0
    assert held.has_room_for("one", "a")
