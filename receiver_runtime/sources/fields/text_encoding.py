"""Say which encodings of text can be cut into lines, and which one a stream's first bytes name.

The one place for that, for all sources. It must never decode records: ``receiver_runtime.receivers.lines`` does.
"""

from __future__ import annotations

import codecs
import re
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

# Encodings in which each byte is a character, and only b"\n" is a newline, …
_ONE_BYTE = re.compile(
    r"ascii|iso8859-\d+|cp125\d|cp(437|720|737|775|85[025678]|86[0-9]|874|1006|1125)|hp-roman8|koi8-[rtu]|kz1048|"
    r"mac-(arabic|croatian|cyrillic|farsi|greek|iceland|latin2|roman|romanian|turkish)|palmos|ptcp154|tis-620"
)
# … those with several bytes per character, in which bytes below 0x30 are never part of a longer character, …
_SEVERAL_BYTES = re.compile(
    r"big5(hkscs)?|cp932|cp949|cp950|euc_jis_2004|euc_jisx0213|euc_jp|euc_kr|gb18030|gb2312|gbk|johab|"
    r"shift_jis(_2004|x0213)?"
)
#: Bytes from this one on may be part of a longer character of the second kind.
LEAST_TRAIL_BYTE = 0x30
# … and those of units of several bytes. Without a mark, "utf-16" and "utf-32" are little-endian, as on Windows.
_UNITS = {
    "utf-16": 2,
    "utf-16-le": 2,
    "utf-16-be": 2,
    "utf-32": 4,
    "utf-32-le": 4,
    "utf-32-be": 4,
}
# The longer marks first: UTF-32's begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_FAMILY = len("utf-16")
#: Bytes of the longest mark.
MARK_BYTES = 4
#: The mark of UTF-8, which belongs to no text: a reader of text as UTF-8 alone removes it by this.
UTF8_MARK = codecs.BOM_UTF8
_NAMES = (
    "utf-8, utf-16, utf-32, ascii, a one-byte encoding (iso8859-*, cp125*, koi8-r, …), or shift_jis, cp932, euc_jp, "
    "euc_kr, cp949, big5, gb2312, gbk, gb18030 and the like"
)


class Marked(NamedTuple):
    """Hold an encoding, and how many of a stream's first bytes are the mark that names it."""

    encoding: str
    mark: int


def check_encoding(encoding: str) -> str:
    """Return Python's own name of an encoding. Raises ValueError if text in it can't be cut into lines."""
    try:
        name = codecs.lookup(encoding).name.removesuffix("-sig")
    except (LookupError, ValueError):
        # A name with a NUL is a ValueError.
        name = ""
    if name != "utf-8" and name not in _UNITS and not is_one_byte(name) and not has_several_bytes(name):
        raise ValueError(f"{encoding!r} can't be cut into lines: use {_NAMES}; or convert at the sender")
    return name


def check_byte_encoding(encoding: str) -> str:
    """Do as ``check_encoding``, for streams that are cut at any bytes. Raises ValueError also for UTF-16 and UTF-32."""
    name = check_encoding(encoding)
    if unit_of(name) > 1:
        raise ValueError(
            f"{encoding!r} can't be cut at bytes: use utf-8, or another encoding whose newline is one byte"
        )
    return name


#: A field with an encoding, by any name that Python has for it.
TextEncoding = Annotated[str, AfterValidator(check_encoding)]


def is_one_byte(encoding: str) -> bool:
    """Return whether each byte of an encoding is a character."""
    return _ONE_BYTE.fullmatch(encoding) is not None


def has_several_bytes(encoding: str) -> bool:
    """Return whether an encoding's characters have one byte, or several from ``LEAST_TRAIL_BYTE`` on."""
    return _SEVERAL_BYTES.fullmatch(encoding) is not None


def unit_of(encoding: str) -> int:
    """Return how many bytes a newline has in an encoding."""
    return _UNITS.get(encoding, 1)


def by_mark(head: bytes, declared: str) -> Marked:
    """Return the encoding of text that begins with these bytes.

    A byte-order mark decides between Unicode's encodings, and belongs to no record. Where another encoding is declared,
    it is text.

    Args:
        head: the first ``MARK_BYTES`` bytes, or all where there are fewer.
        declared: as ``check_encoding`` returns it.
    """
    for mark, encoding in _MARKS:
        # In the other byte order the mark would be no character: so it decides there too.
        if head.startswith(mark) and (declared == "utf-8" or declared[:_FAMILY] == encoding[:_FAMILY]):
            return Marked(encoding, len(mark))
    return Marked(f"{declared}-le" if declared in ("utf-16", "utf-32") else declared, 0)
