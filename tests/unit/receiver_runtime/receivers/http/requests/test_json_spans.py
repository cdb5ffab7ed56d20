"""Check that vector code cuts arrays and objects where a look at each character cuts them."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from receiver_runtime.receivers.http.requests.json_spans import Span, UnknownSpansError, spans_of
from tests.support.searches import examples

TEXT = st.text('a,:[{"\\}]é ', max_size=5)
VALUES = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
)


STEPS = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


def by_character(data: bytes) -> list[Span] | None:
    """Do the same in plain Python; None: the brackets, strings or commas do not show it."""
    parts: list[list[bytes]] = [[b""]]
    depth, is_string = 0, False
    found = re.findall(rb'\\\\|\\"|.', data, re.DOTALL)
    for number, one in enumerate(found, start=1):
        is_string ^= one == b'"'
        depth += 0 if is_string else STEPS.get(one, 0)
        if depth == 0:
            return spans(parts, is_object=one == b"}") if number == len(found) and data[-1] - data[0] == 2 else None
        is_outermost = depth == 1 and not is_string
        if is_outermost and one == b",":
            parts.append([b""])
        elif is_outermost and one == b":" and len(parts[-1]) == 1:
            parts[-1].append(b"")
        elif number > 1:
            parts[-1][-1] += one
    return None


def spans(parts: list[list[bytes]], *, is_object: bool) -> list[Span] | None:
    if len(parts) == 1 and not b":".join(parts[0]).strip(b" "):
        return []
    if any(len(part) != 1 + is_object or not part[-1].strip(b" ") for part in parts):
        return None
    return [Span(part[0].strip(b" ") if is_object else b"", part[-1].strip(b" ")) for part in parts]


def cut(data: bytes) -> list[Span] | None:
    try:
        return list(spans_of(data, lambda: None))
    except UnknownSpansError:
        return None


@given(
    st.lists(st.sampled_from(["[", "]", "{", "}", ",", ":", '"', '"', "\\", '\\"', "\\\\", " ", "a"]), max_size=14),
    st.sampled_from(["[]", "[]", "{}", "[}", '["']),
)
@example(list('"\\\\",1'), "[]")
@example(list('"\\\\\\",1",2'), "[]")
@example(list('\\"a",1'), "[]")
@example([":"], "{}")
@pytest.mark.search
@settings(max_examples=examples(500), deadline=None)
def test_any_text_is_cut_as_character_by_character(text: list[str], around: str) -> None:
    data = (around[0] + "".join(text) + around[1]).encode()
    assert cut(data) == by_character(data)


@given(st.lists(st.tuples(TEXT, VALUES), max_size=5), st.booleans())
def test_elements_and_members_are_found_as_they_were_sent(members: list[tuple[str, object]], ascii_only: bool) -> None:
    sent = [[json.dumps(part, ensure_ascii=ascii_only).encode() for part in member] for member in members]
    array = b"[" + b" ,\n".join(value for _, value in sent) + b" ] "
    assert cut(array) == [Span(b"", value) for _, value in sent]
    assert cut(b" {" + b",".join(name + b" : " + value for name, value in sent) + b"}") == [Span(*one) for one in sent]
