r"""Refuse patterns and names that the program which matches them reads otherwise than the one they were written for.

Every such value is valid where it is matched, and selects nothing, or the opposite: nothing is read for ever, without a
word. So a value is checked by what its dialect has not, and the way out says how to write it there. What could be a
name as it stands is never refused for being unusual alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# A class of characters, as `fnmatch` reads it, and a range in one.
_CLASS = r"\[(?:!?\][^\]]*\]|![^\]]+\]|[^\]!][^\]]*\])"
_RANGE = re.compile(r"([^\[!-])-([^\]-])")


@dataclass(frozen=True, slots=True)
class Dialect:
    """List what a matcher's patterns do not have, as regular expressions, each with how to fix it."""

    foreign: tuple[tuple[str, str], ...]
    has_classes: bool = False

    def check(self, *values: str) -> None:
        """Raise ValueError for the first value that is of another dialect."""
        for value in values:
            for expression, way_out in self.foreign:
                if re.search(expression, value, re.DOTALL):
                    raise ValueError(f"{value!r} does not match what it seems to: {way_out}")
            for begin, end in self._ranges(value):
                if begin > end:
                    raise ValueError(
                        f"{value!r} does not match what it seems to: turn {begin}-{end} round, it is empty"
                    )

    def _ranges(self, value: str) -> list[tuple[str, str]]:
        """Return the ranges of characters in a pattern's classes."""
        return [pair for one in re.findall(_CLASS, value) for pair in _RANGE.findall(one)] if self.has_classes else []


#: Every dialect's: a blank at an end is a slip, and matched.
BLANKS = (r"^\s|\s$", "leave out the blanks at its ends")
# Python's fnmatch and glob.
_GLOB = (
    BLANKS,
    (r"^(re|regex|glob):", "nothing stands before a pattern: '*' stands for any text"),
    (r"\[\[:", "classes have no names: write their characters, as '[a-z]'"),
    (rf"^(?:[^\[]|{_CLASS})*(?!{_CLASS})\[", "a '[' has no ']': write '[[]' for the character"),
    (r"\[\^", "a class is negated by '!', as '[!a]*'"),
    (r"\{[^{}]*,[^{}]*\}", "braces stand for themselves: declare a stream for each"),
    (r"[?*+@!]\([^()]*\|", "parentheses stand for themselves: declare a stream for each"),
    (r",\s*[*/]", "a comma stands for itself: declare a stream for each"),
    (r"\\(?!\])", "it is no regular expression: '*' stands for any text, '.' for itself, and '[\\]' for a backslash"),
)
#: Patterns of file names, by `fnmatch`.
FILE_NAMES = Dialect(
    (
        ("^$", "write '*' for each name"),
        ("/", "names have no '/', and files in directories below are read too: write the name's pattern alone"),
        *_GLOB,
    ),
    has_classes=True,
)
#: Patterns of the names of files that are read, where names with `_` or `.` first are not.
READ_FILE_NAMES = Dialect(
    (*FILE_NAMES.foreign, ("^[_.]", "files whose names begin with '_' or '.' are not read")), has_classes=True
)
#: Patterns of paths, by `glob`.
FILE_PATHS = Dialect(
    (
        *_GLOB,
        ("/$", "it names a directory: write its files, as '/var/log/app/*.log*'"),
        (r"[^/]\*\*|\*\*[^/]", "'**' stands for directories only as a whole part of the path, as '/var/log/**/*.log'"),
        (r"[*?\[].*/\.\.(/|$)", "write the path without '..'"),
    ),
    has_classes=True,
)
#: A directory, or a prefix of an object store, of which nothing is matched.
PLAIN_PATHS = Dialect(((r"[*]", "it is a directory or a prefix, and its files are named by `pattern`"), BLANKS))
PLAIN_URLS = Dialect((*PLAIN_PATHS.foreign, ("#", "what follows '#' is no part of a key: choose another prefix")))
