"""Give a row to each segment file of a receiver that has none, because the driver log lost its last commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_path.recovery.groups import groups
from receiver_runtime.block_path.recovery.salvage_report import FAILOVER_RUNBOOK
from receiver_runtime.block_path.recovery.segment_scan import SEGMENT_NAME
from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.frames.frame import SourceRule
from receiver_runtime.block_store.frames.segment import TornTail
from tracker_store.blocks.segments import end_of_epoch, oldest_known, open_segment
from tracker_store.blocks.stored_blocks import segment_paths_known
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.block_path.recovery.salvage_report import SalvageReport
    from receiver_runtime.block_store.stores.interface import BlockStore
    from receiver_runtime.reporting.driver_log import DriverLog
    from tracker_store.blocks.blocks import Claim

_log = structlog.get_logger(__name__)

_PATHS_SHOWN = 5


class LostSegments:
    """Find one receiver's files without a row; ``give_rows`` once."""

    def __init__(
        self, driver_log: DriverLog, store: BlockStore, claim: Claim, report: SalvageReport, *, location: str
    ) -> None:
        self._driver_log = driver_log
        self._store = store
        self._claim = claim
        self._receiver_id = claim.receiver_id
        self._report = report
        self._location = location

    def give_rows(self) -> None:
        """Give a row to each file of the receiver that has none, as if a killed process had left it open."""
        try:
            unknown = [found for page in groups(sorted(self._own_files())) for found in self._without_row(page)]
            if unknown:
                # Clean-up deletes a file, then its row. If it deleted a row since the first look, the file is gone now
                # too.
                files = self._own_files()
                unknown = [found for found in unknown if found in files]
        except (OSError, BlockStoreError) as error:
            _log.warning("could not look for lost segments", receiver_id=self._receiver_id, error=str(error))
            return
        if not unknown:
            return
        oldest = self._driver_log.until_answered(
            "read since when the receiver is known", lambda c: oldest_known(c, receiver_id=self._receiver_id)
        )
        given, left = [], []
        for epoch, _, path in unknown:
            end = self._driver_log.until_answered(
                "read where an epoch ended",
                lambda c, epoch=epoch: end_of_epoch(c, receiver_id=self._receiver_id, epoch=epoch),  # type: ignore[misc]
            )
            if oldest.epoch <= epoch < self._claim.epoch and oldest.low_mark <= end.sequence:
                self._give_row(epoch, path)
                given.append(path)
            else:
                left.append(path)
        said = []
        if given:
            said.append(f"{len(given)} are salvaged now: {_some(given)}")
        if left:
            said.append(f"{len(left)} stay as they are, for they may be another driver log's: {_some(left)}")
        self._report.report(
            ReceiverEventKind.ERROR,
            "the driver log has no rows of segments that this receiver made",
            f"it lost its last commits, or was restored: {'; '.join(said)}; see {FAILOVER_RUNBOOK}",
        )

    def _own_files(self) -> set[tuple[int, int, str]]:
        """Return the receiver's files as (epoch, number, path)."""
        found = set()
        for path in self._store.segment_paths(f"receiver-{self._receiver_id}"):
            name = SEGMENT_NAME.fullmatch(path)
            if name is not None and int(name["receiver"]) == self._receiver_id:
                found.add((int(name["epoch"]), int(name["number"]), path))
        return found

    def _without_row(self, page: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
        paths = [path for _, _, path in page]
        known = self._driver_log.until_answered("look for rows of segments", lambda c: segment_paths_known(c, paths))
        return [found for found in page if found[2] not in known]

    def _give_row(self, epoch: int, path: str) -> None:
        rule = SourceRule.NOT_SENT_AGAIN
        try:
            for item in self._store.scan(path):
                if not isinstance(item, TornTail) and item.header is not None:
                    rule = item.header.source_rule
                    break
        except (OSError, BlockStoreError) as error:
            # Salvage looks for itself, and each frame has its own.
            _log.warning("could not read a lost segment yet", path=path, error=str(error))
        self._driver_log.until_answered(
            "give a segment its row",
            lambda c: open_segment(
                c,
                receiver_id=self._receiver_id,
                epoch=epoch,
                path=path,
                source_rule=rule.name.lower(),
                store=self._location,
            ),
        )


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_PATHS_SHOWN]) + (" …" if len(paths) > _PATHS_SHOWN else "")
