"""Read a Java class's fields and strings from its class file: the names Spark itself uses, without a JVM."""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    from collections.abc import Iterator

_UTF8 = 1
# Bytes of a constant after its tag, by tag; longs and doubles (5, 6) take two entries in the table.
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
_DOUBLE_WIDTH = (5, 6)
_STRING = 8
_STATIC = 0x0008


@dataclass(frozen=True)
class ClassFile:
    """A class's own non-static fields, in order, and the strings in its code."""

    fields: list[str]
    strings: set[str]


def read_class(jar: str, name: str) -> ClassFile:
    """Read a class from one of pyspark's jars: `jar` without its versions, `name` with dots."""
    [path] = (Path(pyspark.__file__).parent / "jars").glob(f"{jar}_*.jar")
    with zipfile.ZipFile(path) as archive:
        return _parse(archive.read(name.replace(".", "/") + ".class"))


def _parse(data: bytes) -> ClassFile:
    magic, count = struct.unpack_from(">I4xH", data)
    assert magic == 0xCAFEBABE
    texts: dict[int, str] = {}
    strings: list[int] = []
    at, index = 10, 1
    while index < count:
        tag = data[at]
        if tag == _UTF8:
            (length,) = struct.unpack_from(">H", data, at + 1)
            # Modified UTF-8 differs from UTF-8 only in characters that no name has.
            texts[index] = data[at + 3 : at + 3 + length].decode(errors="replace")
            at += 3 + length
        else:
            if tag == _STRING:
                strings.append(struct.unpack_from(">H", data, at + 1)[0])
            at += 1 + _SIZES[tag]
        index += 2 if tag in _DOUBLE_WIDTH else 1
    (interfaces,) = struct.unpack_from(">H", data, at + 6)
    fields = [texts[name] for name, access in _fields(data, at + 8 + 2 * interfaces) if not access & _STATIC]
    return ClassFile(fields, {texts[text] for text in strings})


def _fields(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    (count,) = struct.unpack_from(">H", data, at)
    at += 2
    for _ in range(count):
        access, name, _, attributes = struct.unpack_from(">4H", data, at)
        yield name, access
        at += 8
        for _ in range(attributes):
            (length,) = struct.unpack_from(">I", data, at + 2)
            at += 6 + length
