"""What the driver log knows of the contents of followed files: names of partitions, and where each is read to.

Nothing is remembered anywhere else. With ``HOST/`` before each, but where the directory is shared, the names are:

- ``INODE/LENGTH-DIGEST``: a *content*, by the inode where it was begun and its *print*, the first line or lines; ``~1``
  behind it for a second that begins so. Its position is how far it is read.
- ``=+0:LENGTH-DIGEST``: who first begins a content with that print (``+1`` for the second) puts its inode there, and
  whoever finds another's there takes that one's name, so that one content has one name wherever it lies by then.
- ``zSIZE-DIGEST``: a compressed file that has been read to its end, and is not decompressed again with each start.
- a content's name with ``+GENERATION:LENGTH-DIGEST`` behind it: its *second print*, of what was read of it first,
  beyond its print, and goes in with that very block; or, with a length above ``PRINT_BYTES``, a *mark*: of the last
  ``PRINT_BYTES`` before ``LENGTH``. They tell apart what begins with the same line.
- ``==+0:LENGTH-DIGEST``: of the line behind a print, in the block of its second print. Of two that read one content by
  two names, whoever comes second is refused and looks again (``+1`` for another content that goes on with that line).

It never looks at a file.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from tracker_store.blocks import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from receiver_runtime.driver_log import SourcePositions

#: A length, and the digest of so much of a beginning; of a mark, of what ends there.
Print = tuple[int, str]
#: A content's name and generation.
At = tuple[str, int]

#: No print is longer.
PRINT_BYTES = 4096
_NAME = re.compile(r"([0-9a-f]+)/(\d+)-([0-9a-f]+)(?:~(\d+))?")
_SECOND = re.compile(r"(.+)\+(\d+):(\d+)-([0-9a-f]+)")
_CLAIM = re.compile(r"=\+(\d+):(\d+)-([0-9a-f]+)")
_BEYOND = re.compile(r"==\+(\d+):(\d+-[0-9a-f]+)")
_START = "@start"


def digest(data: bytes) -> str:
    """Of a print, a mark."""
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def begins_so(head: bytes, second: Print | None, *, is_whole: bool = True) -> bool:
    """Has a content this second print, as far as there is one? ``is_whole``: it is to be as long as that."""
    if second is None:
        return True
    length, its = second
    return digest(head[:length]) == its if len(head) >= length else not is_whole


def copy_number(name: str) -> int:
    """How many contents with its print and inode there were before this one."""
    return int(name.partition("~")[2] or 0)


def print_name(name: str, generation: int, print_: Print) -> str:
    """Of a content's second print, or mark."""
    return f"{name}+{generation}:{print_[0]}-{print_[1]}"


def number_of(name: str) -> int:
    """What stands for a content's name where a position is to."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()) >> 1


class FollowedContents:
    """See the module.

    Args:
        source: the name of the source in the driver log.
        prefix: before each name.
        positions: of the stream.
    """

    def __init__(self, source: str, prefix: str, positions: SourcePositions) -> None:
        self._source = source
        self._prefix = prefix
        self._positions = positions
        self.known: dict[str, Position] = {}
        #: The names of contents that somebody reads or is about to read, read or not.
        self.claimed: set[str] = set()
        self.by_print: dict[Print, set[str]] = {}
        self.by_inode: dict[str, list[str]] = {}
        #: Of as much of a content's beginning as there is one of; and the mark behind that.
        self.seconds: dict[At, Print] = {}
        self.marks: dict[At, Print] = {}
        self.by_second: dict[Print, list[At]] = {}
        #: How often the driver log was asked, and at which time a second print was first seen there.
        self.asked = 0
        self.seen_at: dict[At, int] = {}
        # The next number of a line behind a print.
        self._beyond: dict[str, int] = {}
        # Since when a name is of nothing that is there.
        self._gone: dict[str, float] = {}

    def learn(self, known: Mapping[str, Position]) -> None:
        """Take what the driver log has."""
        self.known = {name: at for name, at in known.items() if name.startswith(self._prefix)}
        self.by_print = {}
        self.by_inode = {}
        self.seconds = {}
        self.marks = {}
        self._beyond = {}
        self.claimed = {name for claim, at in self.known.items() if (name := self._claimed_by(claim, at)) is not None}
        for name in self.claimed | self.known.keys():
            self._learn_name(name)
        self.asked += 1
        self.seen_at = {at: self.seen_at.get(at, self.asked) for at in self.seconds}
        self.by_second = {}
        for at, print_ in self.seconds.items():
            self.by_second.setdefault(print_, []).append(at)

    def _learn_name(self, name: str) -> None:
        own = name.removeprefix(self._prefix)
        if (beyond := _BEYOND.fullmatch(own)) is not None:
            self._beyond[beyond[2]] = max(self._beyond.get(beyond[2], 0), int(beyond[1]) + 1)
        elif (second := _SECOND.fullmatch(name)) is not None:
            found, at = (int(second[3]), second[4]), (second[1], int(second[2]))
            of_these = self.seconds if found[0] <= PRINT_BYTES else self.marks
            of_these[at] = max(found, of_these.get(at, found))
        elif (content := _NAME.fullmatch(own)) is not None:
            self.by_print.setdefault((int(content[2]), content[3]), set()).add(name)
            self.by_inode.setdefault(content[1], []).append(name)

    # -- what is known of one ----------------------------------------------------------------------------------------

    def is_claimed(self, name: str) -> bool:
        """Does somebody read it, or is about to?"""
        return name in self.claimed or name in self.known

    def at(self, name: str) -> Position | None:
        """Where a content is read to; at its beginning, where nothing of it is registered yet."""
        return self.known.get(name) or (Position(0, 0) if name in self.claimed else None)

    def offset(self, name: str) -> int:
        """The same, -1 where it is unknown."""
        at = self.at(name)
        return -1 if at is None else at.offset

    def print_of(self, name: str) -> Print | None:
        """Of a content's name; None: it is none."""
        found = _NAME.fullmatch(name.removeprefix(self._prefix))
        return None if found is None else (int(found[2]), found[3])

    def is_sure(self, name: str) -> bool:
        """Is more known of a content than its print?"""
        at = self.at(name)
        return at is not None and ((name, at.generation) in self.seconds or (name, at.generation) in self.marks)

    def is_over(self, name: str, at: Position, length: int) -> bool:
        """What got beyond its print and has no second one: it was lost, or had another name."""
        return (name, at.generation) not in self.seconds and length < min(at.offset, PRINT_BYTES)

    def own_name(self, inode: str, print_: Print) -> str:
        """Of a content that is begun there."""
        return f"{self._prefix}{inode}/{print_[0]}-{print_[1]}"

    # -- what is added to it -----------------------------------------------------------------------------------------

    def put_at_once(self, name: str) -> None:
        """A name without a position."""
        self.known[name] = self._positions.open_partition(self._source, name, 0)

    def begin_at(self, name: str, offset: int) -> Position:
        """A content that is read from there, unless it is known."""
        at = self.known[name] = self._positions.open_partition(self._source, name, offset)
        return at

    def put_second(self, here: At, second: Print) -> None:
        """A second print that no block has."""
        self.seconds[here] = second
        self.by_second.setdefault(second, []).append(here)
        self.seen_at[here] = self.asked
        self.put_at_once(print_name(*here, second))

    def put_mark(self, here: At, mark: Print) -> None:
        """A mark that no block has."""
        self.marks[here] = mark
        self.put_at_once(print_name(*here, mark))

    def claim(self, name: str, inode: int, print_: Print) -> bool:
        """Be the first to begin a content by this name; False: another has, or one that begins alike.

        So that the others find the content by this name before anything of it is read, whatever inode it has then, and
        whoever of us is taken for dead meanwhile.
        """
        claim = f"{self._prefix}=+{copy_number(name)}:{print_[0]}-{print_[1]}"
        if self._positions.open_partition(self._source, claim, inode).offset != inode:
            return False
        self.claimed.add(name)
        return True

    def next_beyond(self, line: str) -> int:
        """How many names go on with that line behind their prints."""
        return self._beyond.get(line, 0)

    def go_beyond(self, line: str) -> str:
        """The name by which a content goes on with it: to go in with its next block."""
        number = self._beyond.get(line, 0)
        self._beyond[line] = number + 1
        return f"{self._prefix}==+{number}:{line}"

    @property
    def start_name(self) -> str:
        """Of a stream that began at the end of what was there."""
        return f"{self._prefix}{_START}"

    # -- what is over ------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Ask the driver log."""
        self.learn(self._positions.all_of(self._source))

    def over(
        self, there: Iterable[str | None], now: float, *, after: float, is_ours: Callable[[str], bool]
    ) -> list[str]:
        """What can be forgotten: what was of nothing that is ``there`` for so many seconds, and what goes with it.

        ``is_ours``: of a print's digest.
        """
        present = {*there, self.start_name}
        self._gone = {
            name: self._gone.get(name, now)
            for name in self.known.keys() | self.claimed
            if name not in present and _SECOND.fullmatch(name) is None and is_ours(_digest_in(name))
        }
        old = [name for name, since in self._gone.items() if now - since >= after]
        # A second print is of use for as long as its content is known.
        old += [name for name in self.known if (found := _SECOND.fullmatch(name)) and found[1] not in self.known]
        # So is who began it.
        gone = set(old)
        began = {name: self._claimed_by(name, at) for name, at in self.known.items()}
        kept = {number_of(name) for name in (self.known.keys() | self.claimed) - gone}
        old += self._superseded(is_ours)
        old = [
            name
            for name in old
            if name in began
            and (began[name] is None or began[name] in gone)
            and not (_BEYOND.fullmatch(name.removeprefix(self._prefix)) and self.known[name].offset in kept)
        ]
        return old + [name for name, content in began.items() if content in gone and name not in gone]

    def forget(self, names: list[str]) -> None:
        """Have the driver log forget them."""
        self._positions.forget(self._source, names)
        self.refresh()

    def _superseded(self, is_ours: Callable[[str], bool]) -> list[str]:
        """Marks behind which there are others."""
        found = [(name, one) for name in self.known if (one := _SECOND.fullmatch(name)) and one[1] in self.known]
        newest: dict[tuple[str, str, bool], tuple[int, str]] = {}
        for name, one in found:
            of_these = (one[1], one[2], int(one[3]) > PRINT_BYTES)
            newest[of_these] = max(newest.get(of_these, (0, "")), (int(one[3]), name))
        kept = {name for _, name in newest.values()}
        return [name for name, one in found if name not in kept and is_ours(_digest_in(one[1]))]

    def _claimed_by(self, claim: str, at: Position) -> str | None:
        """The name of the content that somebody has begun; None: that is no such entry."""
        found = _CLAIM.fullmatch(claim.removeprefix(self._prefix))
        if found is None:
            return None
        number = int(found[1])
        return self.own_name(f"{at.offset:x}", (int(found[2]), found[3])) + (f"~{number}" if number else "")


def _digest_in(name: str) -> str:
    return name.rpartition("-")[2].partition("~")[0]
