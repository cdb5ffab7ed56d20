"""Shorten texts that are too long for their place, such as the reasons of failures.

A reason's beginning names the thing, and its end the root cause and the way out: what is left out is the middle. So a
text keeps both ends however often it is shortened, where it is stored and again where it is shown.

It imports no module of ours, so that all of Forebay shortens by one rule.
"""

from __future__ import annotations

import re

_LEFT_OUT = " … "
# A word that the cut leaves a part of; a long one, such as a path, keeps the part.
_CUT_AT_END, _CUT_AT_BEGIN = re.compile(r"\s\S{0,30}$"), re.compile(r"^\S{0,30}\s")


def shortened(text: str, longest: int) -> str:
    """Return a text with at most `longest` characters: of a longer one the beginning, and twice as much of the end."""
    if len(text) <= longest:
        return text
    kept = longest - len(_LEFT_OUT)
    begin, end = text[: kept // 3], text[kept // 3 - kept :]
    return _CUT_AT_END.sub("", begin) + _LEFT_OUT + _CUT_AT_BEGIN.sub("", end)


def one_line(text: str, longest: int) -> str:
    """Return a text's first line that is not empty, shortened."""
    return shortened(text.strip().partition("\n")[0].rstrip(), longest)


def stored(text: str, longest: int) -> str:
    """Return what is stored of a text: its first line, shortened only if it is too long by itself, and what follows.

    What follows, such as a stack, has the room that is left, and loses its end: the first line has the root cause.
    """
    first, newline, rest = text.partition("\n")
    first = shortened(first, longest)
    return first + (newline + rest)[: longest - len(first)]
