"""Model two receivers that share files: each is killed, falls behind, and learns late which files it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

if TYPE_CHECKING:
    from tests.unit.receiver_runtime.receivers.files.files_rig import Reader

WHICH = st.integers(0, 1)


class SharingModel(RuleBasedStateMachine):
    """Holds the rules about readers. A subclass makes the readers and their files, and says what must hold."""

    readers: list[Reader]
    #: For each receiver: does it have the files that usually belong to the other?
    turned: list[bool]

    def _reader(self, which: int) -> Reader:
        raise NotImplementedError

    def _check(self) -> None:
        raise NotImplementedError

    def _let_all_be_read(self, seconds: int) -> None:
        for which, reader in enumerate(self.readers):
            reader.supervisor.register()
            reader.supervisor.holds = False
            self._learn_whose(which, turned=False)
        for _ in range(seconds):
            for reader in self.readers:
                reader.run(1)
        self._check()

    @rule(which=WHICH)
    def hold_blocks_unregistered(self, which: int) -> None:
        self.readers[which].supervisor.holds = True

    @rule(which=WHICH)
    def register(self, which: int) -> None:
        self.readers[which].supervisor.register()
        self.readers[which].supervisor.holds = False
        self._check()

    @rule(which=WHICH)
    def kill(self, which: int) -> None:
        self.readers[which].close()
        self.readers[which] = self._reader(which)

    @rule(which=WHICH, turned=st.booleans())
    def learns_whose_files_are(self, which: int, *, turned: bool) -> None:
        self._learn_whose(which, turned=turned)

    def _learn_whose(self, which: int, *, turned: bool) -> None:
        """Do what the reader's thread does when others share the files."""
        reader = self.readers[which]
        self.turned[which] = turned
        reader.catalog.release()
        reader.supervisor.register()
        reader.reader._hand_over.settle()
        if reader.reader._hand_over.has_conflict:
            reader.reader._recover()
        else:
            reader.reader._load()
