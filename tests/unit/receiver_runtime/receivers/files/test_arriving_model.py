"""Check files that appear with any time and are removed after reading; two readers share them, are killed and forget.

All of this happens in any order. The model: each line comes once.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from receiver_runtime.receivers.files.arriving import ArrivingCatalog
from receiver_runtime.receivers.files.declaration import FileLines
from receiver_runtime.receivers.files.folders import LocalFolder
from tests.support.searches import examples
from tests.unit.receiver_runtime.receivers.files.files_rig import Log, Reader
from tests.unit.receiver_runtime.receivers.files.sharing_model import WHICH, SharingModel

if TYPE_CHECKING:
    from tests.unit.receiver_runtime.support import ManualClock


class ArrivingFilesModel(SharingModel):
    """Holds the rules and the model (see the module)."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="arriving-"))
        self.log = Log()
        self.clock: ManualClock | None = None
        self.number = 0
        self.modified = time.time() - 1_000_000
        self.written: set[str] = set()
        self.there: dict[Path, set[str]] = {}
        self.turned = [False, False]
        self.readers = [self._reader(0), self._reader(1)]

    def _reader(self, which: int) -> Reader:
        source = FileLines(path=str(self.root), max_age=3)
        made = Reader(
            self.log,
            lambda receiver, sharing, host, clock: ArrivingCatalog(
                source, receiver, sharing, host, folder=LocalFolder(source.path), clock=clock
            ),
            clock=self.clock,
            max_block_bytes="1KiB",
        )
        self.clock = made.clock
        made.sharing.is_alone = False
        made.sharing.ours = lambda key: (len(key) % 2 == which) is not self.turned[which]
        made.reader._load()
        return made

    def teardown(self) -> None:
        if not hasattr(self, "root"):
            return
        try:
            self._let_all_be_read(5)
            assert self.written == set(self.log.values)
        finally:
            for reader in self.readers:
                reader.close()
            shutil.rmtree(self.root)

    def _check(self) -> None:
        values = self.log.values
        assert len(values) == len(set(values)), f"twice: {sorted({v for v in values if values.count(v) > 1})}"

    @rule(
        lines=st.sampled_from([0, 1, 3, 200]), compressed=st.booleans(), later=st.sampled_from([0.0, 0.001, 1.0, -5.0])
    )
    def put(self, lines: int, later: float, *, compressed: bool) -> None:
        self.number += 1
        self.modified += later
        values = [f"line {number} of {self.number}" for number in range(lines)]
        data = "\n".join(values).encode()
        made = self.root / ".made"
        made.write_bytes(gzip.compress(data) if compressed else data)
        os.utime(made, (self.modified, self.modified))
        # Use names of different lengths: each reader takes one parity.
        path = self.root / f"{'x' * (self.number % 3)}{self.number:05d}{'.gz' if compressed else ''}"
        made.rename(path)
        self.there[path] = set(values)
        self.written |= set(values)

    @rule()
    def take_away_what_was_read(self) -> None:
        read = set(self.log.values)
        for path, values in list(self.there.items()):
            if values <= read:
                path.unlink()
                del self.there[path]

    @rule(which=WHICH, seconds=st.sampled_from([0.2, 1.0, 100.0]))
    def look(self, which: int, seconds: float) -> None:
        self.readers[which].step(seconds)
        self._check()


TestArrivingFiles = pytest.mark.search(ArrivingFilesModel.TestCase)
TestArrivingFiles.settings = settings(
    max_examples=examples(100),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
