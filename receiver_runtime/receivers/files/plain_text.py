"""Tell text from bytes that are none, by what a content begins with.

Many kinds have no first bytes of their own (brotli, raw deflate, a program's own format), so that no table can list
them. This module owns the rule that refuses them: too many of the first bytes are control characters. It must never
read a file, or look at a name.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

from receiver_runtime.receivers.files.file_kinds import UnreadableKindError
from receiver_runtime.receivers.files.holes import without_holes
from receiver_runtime.sources.fields.text_encoding import MARK_BYTES, by_mark, unit_of

#: How many of a content's first bytes are looked at.
TEXT_BYTES = 2**16
#: A content that grows is text for ever once this many of its first bytes are.
SURE_BYTES = 2**12
# Control characters that text has: white space, BEL, backspace, escape, DOS's end of a file, and the separators of FIX,
# Hive and ASCII.
_OF_TEXT = b"\x01\a\b\t\n\v\f\r\x1a\x1b\x1c\x1d\x1e\x1f"
_CONTROLS = bytes({*range(0x20), 0x7F} - {*_OF_TEXT})
_NO_CONTROLS = bytes({*range(0x100)} - {*_CONTROLS})
_LEAST_SHARE = 1 / 20  # of bytes that are no text: compressed data has a tenth, and text in another encoding none
_LEAST_CONTROLS = 5  # fewer say nothing, …
_LEAST_BAD = 3  # … unless other bytes are no characters of the encoding either
_NO_CHARACTERS = frozenset({"Cc", "Cn", "Co", "Cs"})
# Formats whose first bytes may begin a line of text too: they only give the refusal a name.
_NAMES: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"\x78[\x01\x5e\x9c\xda]"), "compressed by zlib"),
    (re.compile(rb"(?:\xc7\x71|\x71\xc7)"), "a cpio archive"),
    (re.compile(rb"MZ"), "a program of Windows"),
    (re.compile(rb"GIF8[79]a|RIFF.{4}WEBP|BM|II\*\0|MM\0\*", re.DOTALL), "an image"),
    (re.compile(rb"OggS|fLaC|ID3|RIFF.{4}(?:WAVE|AVI )|.{4}ftyp", re.DOTALL), "a recording"),
    (re.compile(rb"ORC"), "an ORC file"),
)


def check_text(head: bytes, declared: str) -> None:
    """Raise UnreadableKindError where a content is no text in its encoding.

    Args:
        head: its first ``TEXT_BYTES`` bytes, or fewer where fewer are known.
        declared: the encoding, unless a byte-order mark names another.
    """
    encoding, mark = by_mark(head[:MARK_BYTES], declared)
    if not mark and by_mark(head.lstrip(b"\0")[:MARK_BYTES], declared).mark:
        # What is before the mark is a hole.
        head = head.lstrip(b"\0")
        encoding, mark = by_mark(head[:MARK_BYTES], declared)
    bad, size = _count(head[mark:], encoding)
    if not bad or bad < size * _LEAST_SHARE:
        return
    what = next((name for pattern, name in _NAMES if pattern.match(head)), None)
    raise UnreadableKindError(
        what or f"no text in {encoding}, by the control characters among its first bytes",
        "unpack it, give its encoding, leave it out (exclude, pattern), or set binary_lines=True",
    )


def _count(data: bytes, encoding: str) -> tuple[int, int]:
    """Return how many characters are no text, and how many there are; 0 where there are too few to tell."""
    unit = unit_of(encoding)
    if unit == 1:
        if not data.translate(None, _NO_CONTROLS):
            return 0, len(data)
        data = without_holes(data, is_whole=True).data
    found = Counter(data[: len(data) // unit * unit].decode(encoding, "replace"))
    if unit > 1:
        # They are holes.
        del found["\0"]
    controls = sum(found[chr(control)] for control in _CONTROLS)
    bad = controls + sum(count for character, count in found.items() if _is_none(character))
    least = _LEAST_BAD if 0 < controls < bad else _LEAST_CONTROLS
    return (bad if bad >= least else 0), found.total()


def _is_none(character: str) -> bool:
    return character == "\ufffd" or (character >= "\x80" and unicodedata.category(character) in _NO_CHARACTERS)
