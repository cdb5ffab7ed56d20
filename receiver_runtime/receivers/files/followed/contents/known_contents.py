"""Keep what the driver log knows of followed files: the names of contents, and how far each is read.

This module owns the format of the names and all that is remembered beyond the process; nothing is remembered anywhere
else. Except in a shared directory, each name begins with ``HOST/``. The names are:

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

This module must never look at a file, or at the state of one.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.fingerprints import FINGERPRINT_BYTES, digest
from tracker_store.blocks.blocks import ORIGIN, OffsetLink, Position
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from receiver_runtime.receivers.files.followed.contents.fingerprints import Fingerprint
    from receiver_runtime.receivers.files.records import Reading
    from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog

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


def _second_name(here: At, second: Fingerprint) -> str:
    """Return the name of a content's second fingerprint, or mark."""
    name, generation = here
    return f"{name}+{generation}:{second[0]}-{second[1]}"


def _number_of(name: str) -> int:
    """Return the number that stands for a content's name in the place of a position."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()) >> 1


class KnownContents:
    """Hold what the driver log has, as of the last refresh, and what this receiver has added since.

    Args:
        source: the name of the source in the driver log.
        prefix: stands before each name.
        driver_log: the positions of the stream.
    """

    def __init__(self, source: str, prefix: str, driver_log: ReceiverDriverLog) -> None:
        #: The name of the source in the driver log.
        self.source = source
        self._prefix = prefix
        self._driver_log = driver_log
        self._positions: dict[str, Position] = {}
        # The names of contents that a receiver reads or is about to read; also before anything of them is registered.
        self._claimed: set[str] = set()
        self._by_fingerprint: dict[Fingerprint, set[str]] = {}
        self._by_inode: dict[str, list[str]] = {}
        # The longest second fingerprint of each content, and its last mark.
        self._seconds: dict[At, Fingerprint] = {}
        self._marks: dict[At, Fingerprint] = {}
        self._by_second: dict[Fingerprint, list[At]] = {}
        # The number of the refresh at which each second fingerprint was first seen.
        self._seen_at: dict[At, int] = {}
        # The next number of each continuation.
        self._continuations: dict[str, int] = {}
        # Since when each name belongs to nothing that is present.
        self._gone: dict[str, float] = {}
        #: How often this was refreshed.
        self.refreshes = 0

    def learn(self, positions: Mapping[str, Position]) -> None:
        """Replace what is known by what the driver log has."""
        self._positions = {name: at for name, at in positions.items() if name.startswith(self._prefix)}
        self._by_fingerprint = {}
        self._by_inode = {}
        self._seconds = {}
        self._marks = {}
        self._continuations = {}
        self._claimed = {
            name for claim, at in self._positions.items() if (name := self._claimed_by(claim, at)) is not None
        }
        for name in self._claimed | self._positions.keys():
            self._learn_name(name)
        self.refreshes += 1
        self._seen_at = {at: self._seen_at.get(at, self.refreshes) for at in self._seconds}
        self._by_second = {}
        for at, second in self._seconds.items():
            self._by_second.setdefault(second, []).append(at)

    def refresh(self) -> None:
        """Ask the driver log what it has."""
        self.learn(self._driver_log.all_of(self.source))

    def _learn_name(self, name: str) -> None:
        own = name.removeprefix(self._prefix)
        if (continuation := _CONTINUATION.fullmatch(own)) is not None:
            line = continuation[2]
            self._continuations[line] = max(self._continuations.get(line, 0), int(continuation[1]) + 1)
        elif (second := _SECOND.fullmatch(name)) is not None:
            found, at = (int(second[3]), second[4]), (second[1], int(second[2]))
            of_these = self._seconds if found[0] <= FINGERPRINT_BYTES else self._marks
            of_these[at] = max(found, of_these.get(at, found))
        elif (content := _NAME.fullmatch(own)) is not None:
            self.add_fingerprint(name, (int(content[2]), content[3]))
            self._by_inode.setdefault(content[1], []).append(name)

    # -- one content -------------------------------------------------------------------------------------------------

    def registered(self, name: str) -> Position | None:
        """Return the position that is registered by this name, or None."""
        return self._positions.get(name)

    def is_registered(self, name: str | None) -> bool:
        """Return whether the driver log has this name."""
        return name in self._positions

    def is_claimed(self, name: str) -> bool:
        """Return whether a receiver reads this content, or is about to."""
        return name in self._claimed or name in self._positions

    def at(self, name: str) -> Position | None:
        """Return how far a content is read: its beginning while it is only claimed, None where it is unknown."""
        return self._positions.get(name) or (Position(0, 0) if name in self._claimed else None)

    def offset(self, name: str) -> int:
        """Return the offset up to which a content is read, or -1 where it is unknown."""
        at = self.at(name)
        return -1 if at is None else at.offset

    def fingerprint_in(self, name: str) -> Fingerprint | None:
        """Return the fingerprint that a content's name has in it, or None where the name is no content's."""
        found = _NAME.fullmatch(name.removeprefix(self._prefix))
        return None if found is None else (int(found[2]), found[3])

    def second(self, name: str, generation: int) -> Fingerprint | None:
        """Return a content's second fingerprint, or None."""
        return self._seconds.get((name, generation))

    def mark(self, name: str, generation: int) -> Fingerprint | None:
        """Return a content's last mark, or None."""
        return self._marks.get((name, generation))

    def second_seen_at(self, name: str, generation: int) -> int:
        """Return the number of the refresh at which a content's second fingerprint was first seen."""
        return self._seen_at[name, generation]

    def is_certain(self, name: str) -> bool:
        """Return whether more is known of a content than its fingerprint."""
        at = self.at(name)
        return at is not None and ((name, at.generation) in self._seconds or (name, at.generation) in self._marks)

    def has_ended(self, name: str, at: Position, length: int) -> bool:
        """Return whether a content got beyond its fingerprint and has no second one: it was lost, or renamed."""
        return (name, at.generation) not in self._seconds and length < min(at.offset, FINGERPRINT_BYTES)

    # -- several contents --------------------------------------------------------------------------------------------

    def begun_in(self, inode: str) -> Iterable[str]:
        """Return the names of contents that began in this inode."""
        return self._by_inode.get(inode, ())

    def with_fingerprint(self, fingerprint: Fingerprint) -> AbstractSet[str]:
        """Return the names of contents with this fingerprint."""
        return self._by_fingerprint.get(fingerprint, set())

    def beginning_with(self, head: bytes) -> set[str]:
        """Return the names of contents whose fingerprint this beginning has, at any length."""
        lengths = {length for length, _ in self._by_fingerprint if length <= len(head)}
        fingerprints = {(length, digest(head[:length])) for length in lengths}
        return {name for one in fingerprints for name in self._by_fingerprint.get(one, ())}

    def continued_with(self, head: bytes) -> list[At]:
        """Return the contents whose second fingerprint this beginning has, the shortest second fingerprint first."""
        lengths = {length for length, _ in self._by_second if length <= len(head)}
        seconds = [(length, digest(head[:length])) for length in sorted(lengths)]
        return [at for second in seconds for at in self._by_second.get(second, ())]

    # -- names -------------------------------------------------------------------------------------------------------

    @property
    def start_name(self) -> str:
        """Return the name that says that the stream began at the end of what was present."""
        return f"{self._prefix}{_START}"

    def own_name(self, inode: str, fingerprint: Fingerprint) -> str:
        """Return the name of a content that begins in this inode."""
        return f"{self._prefix}{inode}/{fingerprint[0]}-{fingerprint[1]}"

    def done_name(self, checksum: Fingerprint) -> str:
        """Return the name that says that a compressed file is read to its end."""
        return f"{self._prefix}z{checksum[0]}-{checksum[1]}"

    # -- what this receiver adds -------------------------------------------------------------------------------------

    def add_fingerprint(self, name: str, fingerprint: Fingerprint) -> None:
        """Note that a content has this fingerprint; the driver log need not have it yet."""
        self._by_fingerprint.setdefault(fingerprint, set()).add(name)

    def add_content(self, name: str, inode: str, fingerprint: Fingerprint) -> None:
        """Note that a content is in this inode; the driver log need not have it yet."""
        self.add_fingerprint(name, fingerprint)
        self._by_inode.setdefault(inode, []).append(name)

    def discard_unclaimed(self, name: str, fingerprint: Fingerprint) -> None:
        """Forget the fingerprint of a content that no receiver has claimed."""
        if not self.is_claimed(name):
            self._by_fingerprint.get(fingerprint, set()).discard(name)

    def advance(self, name: str, generation: int, offset: int) -> None:
        """Note that a content is read up to here, unless another receiver has read it further."""
        at = self._positions.get(name, Position(0, ORIGIN))
        if (at.generation, at.offset) < (generation, offset):
            self._positions[name] = Position(generation, offset)

    def claim(self, name: str, inode: str, fingerprint: Fingerprint) -> bool:
        """Be the first to begin a content by this name; False: another receiver has begun it, or one that begins alike.

        After a claim the other receivers find the content by this name before anything of it is read, even if it has
        another inode by then, or this receiver is taken for dead.
        """
        claim = f"{self._prefix}=+{copy_number(name)}:{fingerprint[0]}-{fingerprint[1]}"
        number = int(inode, 16)
        if self._driver_log.open_partition(self.source, claim, number).offset != number:
            return False
        self._claimed.add(name)
        return True

    def register(self, name: str) -> None:
        """Register a name that needs no position, without a block."""
        self._positions[name] = self._driver_log.open_partition(self.source, name, 0)

    def register_at(self, name: str, offset: int) -> Position:
        """Register, without a block, that a content is read from ``offset``; return where it is read from."""
        at = self._positions[name] = self._driver_log.open_partition(self.source, name, offset)
        return at

    def register_second(self, here: At, second: Fingerprint) -> None:
        """Register a second fingerprint without a block."""
        self._seconds[here] = second
        self._by_second.setdefault(second, []).append(here)
        self._seen_at[here] = self.refreshes
        self.register(_second_name(here, second))

    def register_skipped(self, here: At, mark: Fingerprint) -> None:
        """Register the mark of what is skipped, without a block."""
        self._marks[here] = mark
        self.register_mark(here, mark)

    def register_mark(self, here: At, mark: Fingerprint) -> None:
        """Register a mark without a block."""
        self.register(_second_name(here, mark))

    def link_second(self, reading: Reading, second: Fingerprint) -> None:
        """Register a second fingerprint, or a mark, with the next block of its content."""
        self._link(reading, _second_name((reading.name, reading.generation), second), 0)

    def count_continuations(self, line: Fingerprint) -> int:
        """Return how many contents continue with this line behind their fingerprints."""
        return self._continuations.get(f"{line[0]}-{line[1]}", 0)

    def link_continuation(self, reading: Reading, line: Fingerprint) -> None:
        """Register with the next block of a content that it continues with this line."""
        number = self.count_continuations(line)
        text = f"{line[0]}-{line[1]}"
        self._continuations[text] = number + 1
        self._link(reading, f"{self._prefix}==+{number}:{text}", _number_of(reading.name))

    def link_end(self, name: str, beyond: int, other: Reading) -> None:
        """End, with the next block of ``other``, a name that the same content had beside that one."""
        at = self._positions.get(name)
        generation = 0 if at is None else at.generation + 1
        other.before.append(OffsetLink(self.source, name, generation, ORIGIN, beyond, LinkKind.ORIGIN))

    def _link(self, reading: Reading, name: str, value: int) -> None:
        if name not in self._positions:
            reading.before.append(OffsetLink(self.source, name, 0, ORIGIN, value, LinkKind.ORIGIN))

    # -- what is forgotten -------------------------------------------------------------------------------------------

    def expired(
        self, present: Iterable[str | None], now: float, *, after: float, is_ours: Callable[[str], bool]
    ) -> list[str]:
        """Return the names that can be forgotten.

        They belong to nothing that was present in the last ``after`` seconds, or to another name that is forgotten.

        Args:
            is_ours: is asked of a fingerprint's digest; a name is forgotten by the receiver that reads its content.
        """
        kept_names = {*present, self.start_name}
        self._gone = {
            name: self._gone.get(name, now)
            for name in self._positions.keys() | self._claimed
            if name not in kept_names and _SECOND.fullmatch(name) is None and is_ours(_digest_in(name))
        }
        old = [name for name, since in self._gone.items() if now - since >= after]
        # A second fingerprint is of use while its content is known.
        old += [
            name for name in self._positions if (found := _SECOND.fullmatch(name)) and found[1] not in self._positions
        ]
        # A claim, too, is of use only while its content is known.
        gone = set(old)
        began = {name: self._claimed_by(name, at) for name, at in self._positions.items()}
        kept = {_number_of(name) for name in (self._positions.keys() | self._claimed) - gone}
        old += self._superseded(is_ours)
        old = [
            name
            for name in old
            if name in began
            and (began[name] is None or began[name] in gone)
            and not (_CONTINUATION.fullmatch(name.removeprefix(self._prefix)) and self._positions[name].offset in kept)
        ]
        return old + [name for name, content in began.items() if content in gone and name not in gone]

    def forget(self, names: list[str]) -> None:
        """Have the driver log forget these names."""
        self._driver_log.forget(self.source, names)
        self.refresh()

    def _superseded(self, is_ours: Callable[[str], bool]) -> list[str]:
        """Return second fingerprints and marks of which there is a longer one."""
        found = [
            (name, one) for name in self._positions if (one := _SECOND.fullmatch(name)) and one[1] in self._positions
        ]
        newest: dict[tuple[str, str, bool], tuple[int, str]] = {}
        for name, one in found:
            of_these = (one[1], one[2], int(one[3]) > FINGERPRINT_BYTES)
            newest[of_these] = max(newest.get(of_these, (0, "")), (int(one[3]), name))
        kept = {name for _, name in newest.values()}
        return [name for name, one in found if name not in kept and is_ours(_digest_in(one[1]))]

    def _claimed_by(self, claim: str, at: Position) -> str | None:
        """Return the name of the content that a claim has begun, or None where the name is no claim."""
        found = _CLAIM.fullmatch(claim.removeprefix(self._prefix))
        if found is None:
            return None
        number = int(found[1])
        return self.own_name(f"{at.offset:x}", (int(found[2]), found[3])) + (f"~{number}" if number else "")


def _digest_in(name: str) -> str:
    return name.rpartition("-")[2].partition("~")[0]
