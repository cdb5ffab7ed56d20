from __future__ import annotations

import pytest

from receiver_runtime.receivers.redis.records import Entry, batch_of, id_parts, keys_of, sorted_out


def test_rows_and_keys() -> None:
    entries = [Entry("s", b"1526919030474-3", [b"a", b"1", b"b", b"\xff", b"a", b"2"]), Entry("s", b"9" * 20, [])]
    first, second = batch_of(entries).to_pylist()
    assert first["fields"] == [("a", b"2"), ("b", b"\xff")]
    assert (first["stream"], first["id"], first["timestamp"].microsecond) == ("s", "1526919030474-3", 474_000)
    # An id that was made up.
    assert (second["fields"], second["timestamp"].year) == ([], 9999)
    keys = keys_of(entries).to_pylist()
    assert [key.rpartition("@")[0] for key in keys] == ["1526919030474-3@s", f"{'9' * 20}@s"]


def test_entries_of_one_id_are_told_apart_by_what_is_in_them() -> None:
    """Of a stream that was made anew; and it is the same one that comes again."""
    contents = [[], [b"", b""], [b"a", b"bc"], [b"ab", b"c"], [b"a", b"b", b"c", b""], [b"a", b"bd"]]
    assert len({Entry("s", b"1-1", fields).key for fields in contents}) == len(contents)
    assert [Entry("s", b"1-1", list(fields)) for fields in contents] == [Entry("s", b"1-1", f) for f in contents]


def test_a_name_that_is_no_text_goes_aside() -> None:
    poison, fine = Entry("s", b"1-1", [b"\xff", b"1", b"b", b"2"]), Entry("s", b"1-2", [b"a", b"1"])
    with pytest.raises(UnicodeDecodeError):
        batch_of([fine, poison])
    good, [letter] = sorted_out([poison, fine])
    assert good == [fine]
    assert letter.data == b"\xff=1\nb=2"


def test_ids_are_compared_by_their_numbers() -> None:
    assert id_parts(b"9-10") > id_parts(b"9-9") > id_parts(b"8-11")
