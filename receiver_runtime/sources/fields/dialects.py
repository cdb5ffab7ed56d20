r"""Refuse patterns and names that the program which matches them reads otherwise than the one they were written for.

Every such value is valid where it is matched, and selects nothing, or the opposite: nothing is read for ever, without a
word. So a value is checked by what its dialect has not, and the way out says how to write it there. What could be a
name as it stands is never refused for being unusual alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """List what a matcher's patterns do not have, as regular expressions, each with how to fix it."""

    foreign: tuple[tuple[str, str], ...]

    def check(self, *values: str) -> None:
        """Raise ValueError for the first value that is of another dialect."""
        for value in values:
            for expression, way_out in self.foreign:
                if re.search(expression, value, re.DOTALL):
                    raise ValueError(f"{value!r} does not match what it seems to: {way_out}")


#: Every dialect's: a blank at an end is a slip, and matched.
BLANKS = (r"^\s|\s$", "leave out the blanks at its ends")
# Python's fnmatch and glob.
_GLOB = (
    BLANKS,
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
    )
)
#: Patterns of the names of files that are read, where names with `_` or `.` first are not.
READ_FILE_NAMES = Dialect((*FILE_NAMES.foreign, ("^[_.]", "files whose names begin with '_' or '.' are not read")))
#: Patterns of paths, by `glob`.
FILE_PATHS = Dialect(
    (
        *_GLOB,
        ("/$", "it names a directory: write its files, as '/var/log/app/*.log*'"),
        (r"[^/]\*\*|\*\*[^/]", "'**' stands for directories only as a whole part of the path, as '/var/log/**/*.log'"),
        (r"[*?\[].*/\.\.(/|$)", "write the path without '..'"),
    )
)
#: A directory, or a prefix of an object store, of which nothing is matched.
PLAIN_PATHS = Dialect(((r"[*]", "it is a directory or a prefix, and its files are named by `pattern`"), BLANKS))
PLAIN_URLS = Dialect((*PLAIN_PATHS.foreign, ("#", "what follows '#' is no part of a key: choose another prefix")))
