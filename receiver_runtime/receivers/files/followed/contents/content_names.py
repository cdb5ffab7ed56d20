"""Make and read the names by which the driver log knows contents of followed files, and what belongs to them.

This module owns the format of the names. It must never remember one.

Except in a shared directory, each name begins with ``HOST/``. The names are:

- ``INODE/LENGTH-DIGEST``: a *content*, by the inode in which it began and its *fingerprint*, the first line or lines;
  a second content with the same two has ``~1`` behind it. Its position is how far it is read.
- ``=+0:LENGTH-DIGEST``: a *claim* (``+1`` for the second). The first receiver that begins a content with that
  fingerprint puts its inode there. A receiver that finds another inode there takes the name with that inode, so a
  content has one name, even when it is in another file by then.
- ``zSIZE-DIGEST``: a compressed file that is read to its end, and is not decompressed again with each start.
- a content's name with ``+GENERATION:LENGTH-DIGEST`` behind it: its *second fingerprint*, which covers more than the
  first and goes in with the block that has those bytes; or, with a length above ``FINGERPRINT_BYTES``, a *mark*: the
  digest of the last ``FINGERPRINT_BYTES`` before ``LENGTH``. They tell apart contents that begin with the same line.
- ``==+0:LENGTH-DIGEST``: a *continuation*: the line behind a fingerprint, in the block of the second fingerprint. When
  two receivers read one content by two names, the later one is refused and identifies the file again (``+1`` for
  another content that continues with that line).
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from receiver_runtime.receivers.files.followed.contents.fingerprints import Fingerprint
    from tracker_store.blocks.blocks import Position

#: A content's name and generation.
At = tuple[str, int]

_NAME = re.compile(r"([0-9a-f]+)/(\d+)-([0-9a-f]+)(?:~(\d+))?")
_SECOND = re.compile(r"(.+)\+(\d+):(\d+)-([0-9a-f]+)")
_CLAIM = re.compile(r"=\+(\d+):(\d+)-([0-9a-f]+)")
_CONTINUATION = re.compile(r"==\+(\d+):(\d+-[0-9a-f]+)")
_START = "@start"


def copy_number(name: str) -> int:
    """Return how many contents with this fingerprint and inode came before this one."""
    return int(name.partition("~")[2] or 0)


def is_name_of(name: str, own: str) -> bool:
    """Return whether a name is ``own``, with or without a copy number."""
    return name.partition("~")[0] == own


def second_name(here: At, second: Fingerprint) -> str:
    """Return the name of a content's second fingerprint, or mark."""
    name, generation = here
    return f"{name}+{generation}:{second[0]}-{second[1]}"


def number_of(name: str) -> int:
    """Return the number that stands for a content's name in the place of a position."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()) >> 1


def second_in(name: str) -> tuple[At, Fingerprint] | None:
    """Return the content of a second fingerprint's or mark's name, and that one; None: it is another name."""
    found = _SECOND.fullmatch(name)
    return None if found is None else ((found[1], int(found[2])), (int(found[3]), found[4]))


def digest_in(name: str) -> str:
    """Return the digest at the end of a name."""
    return name.rpartition("-")[2].partition("~")[0]


class ContentNames:
    """Make and read names with a prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    @property
    def start(self) -> str:
        """Return the name that says that the stream began at the end of what was present."""
        return f"{self._prefix}{_START}"

    def own(self, inode: str, fingerprint: Fingerprint) -> str:
        """Return the name of a content that begins in this inode."""
        return f"{self._prefix}{inode}/{fingerprint[0]}-{fingerprint[1]}"

    def done(self, checksum: Fingerprint) -> str:
        """Return the name that says that a compressed file is read to its end."""
        return f"{self._prefix}z{checksum[0]}-{checksum[1]}"

    def claim(self, name: str, fingerprint: Fingerprint) -> str:
        """Return the name of the claim on a content."""
        return f"{self._prefix}=+{copy_number(name)}:{fingerprint[0]}-{fingerprint[1]}"

    def continuation(self, number: int, line: str) -> str:
        """Return the name of a continuation with a line, which is written as its length and digest."""
        return f"{self._prefix}==+{number}:{line}"

    def content_in(self, name: str) -> tuple[str, Fingerprint] | None:
        """Return the inode and the fingerprint that a content's name has in it; None: the name is no content's."""
        found = _NAME.fullmatch(name.removeprefix(self._prefix))
        return None if found is None else (found[1], (int(found[2]), found[3]))

    def fingerprint_in(self, name: str) -> Fingerprint | None:
        """Return the fingerprint that a content's name has in it, or None where the name is no content's."""
        found = self.content_in(name)
        return None if found is None else found[1]

    def continuation_in(self, name: str) -> tuple[str, int] | None:
        """Return the line and the number of a continuation's name; None: it is another name."""
        found = _CONTINUATION.fullmatch(name.removeprefix(self._prefix))
        return None if found is None else (found[2], int(found[1]))

    def claimed_by(self, claim: str, at: Position) -> str | None:
        """Return the name of the content that a claim has begun, or None where the name is no claim."""
        found = _CLAIM.fullmatch(claim.removeprefix(self._prefix))
        if found is None:
            return None
        number = int(found[1])
        return self.own(f"{at.offset:x}", (int(found[2]), found[3])) + (f"~{number}" if number else "")
