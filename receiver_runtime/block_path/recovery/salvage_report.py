"""Say in the receiver's events what a salvage of one epoch found, registered, left and lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_store.frames.frame import SourceRule
from tracker_store.receivers.receivers import report_event
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.block_path.recovery.found_frames import FoundFrames, SalvagedBlock
    from receiver_runtime.reporting.driver_log import DriverLog
    from tracker_store.blocks.blocks import Claim
    from tracker_store.blocks.segments import OpenSegment

_log = structlog.get_logger(__name__)

#: Pages for operators.
RUNBOOK = "docs/runbooks/receiver-killed.md"
FAILOVER_RUNBOOK = "docs/runbooks/postgres-failover.md"


class SalvageReport:
    """Report for one claim."""

    def __init__(self, driver_log: DriverLog, claim: Claim) -> None:
        self._driver_log = driver_log
        self._claim = claim

    def report(self, kind: ReceiverEventKind, message: str, detail: str) -> None:
        """Report at once, not through the reporter, so that a reported loss stays reported if this process dies now."""
        _log.warning(message, receiver_id=self._claim.receiver_id, detail=detail)
        self._driver_log.until_answered(
            "report a salvage",
            lambda c: report_event(
                c,
                receiver_id=self._claim.receiver_id,
                epoch=self._claim.epoch,
                kind=kind,
                message=message,
                detail=detail,
            ),
        )

    def lost_commits(self, found: FoundFrames, taken: Sequence[SalvagedBlock], left: Sequence[SalvagedBlock]) -> None:
        """Report lost commits. Called before the blocks are registered, or a successor would find fewer to report."""
        again = [block for block in taken if found.was_acknowledged(block)]
        read = [block for block in left if found.was_acknowledged(block)]
        if found.acknowledged <= found.registered:
            return
        said = []
        if again:
            said.append(f"{_counted(again)} ({_numbers(again)}) are registered again")
        if read:
            said.append(f"{_counted(read)} ({_numbers(read)}) are read again from the positions that it has")
        self.report(
            ReceiverEventKind.ERROR,
            "the driver log lacks blocks that it had acknowledged",
            f"epoch {found.epoch} is registered up to sequence {found.registered}, and was up to {found.acknowledged}: "
            f"it lost its last commits, or was restored; {'; '.join(said) or 'nothing of them is stored'}; "
            f"see {FAILOVER_RUNBOOK}",
        )

    def salvaged(
        self,
        found: FoundFrames,
        taken: Sequence[SalvagedBlock],
        left: Sequence[SalvagedBlock],
        recorded: int,
        registered: tuple[int, int],
        sent_again: Sequence[SalvagedBlock] = (),
    ) -> None:
        """Report what was settled.

        ``registered`` are the first and last sequence of what was taken; ``sent_again`` are blocks of channels whose
        senders have sent them again by now.
        """
        said = []
        if taken:
            said.append(f"{_counted(taken)} registered as {registered[0]}..{registered[1]}")
        if left:
            said.append(f"{_counted(left)} left to the sender, who sends them again")
        if sent_again:
            said.append(f"{_counted(sent_again)} left out, their channels are behind them: they were sent again")
        if recorded:
            said.append(f"{recorded} dead letters recorded")
        said += [f"{path} was never made, or is gone, and is sealed as empty" for path in found.missing]
        if said:
            self.report(
                ReceiverEventKind.SALVAGED,
                "segments of an earlier process were salvaged",
                f"epoch {found.epoch}, {len(found.lengths)} segments: {'; '.join(said)}",
            )
        else:
            _log.info("nothing to salvage", receiver_id=self._claim.receiver_id, epoch=found.epoch)

    def damage(self, found: FoundFrames, segments: Sequence[OpenSegment]) -> None:
        """Report what is lost, or can't be read."""
        rule = SourceRule[segments[0].source_rule.upper()]
        # A readable header is more exact than its segment's rule: a segment may hold blocks of either rule.
        damaged = [
            records
            for sequence, (records, its_rule) in found.damaged.items()
            if sequence not in found.intact and not found.comes_again(its_rule, sequence)
        ]
        unknown = found.count_unread(rule)
        said = []
        if damaged or unknown:
            more = f", and those of {unknown} blocks that can't be counted" if unknown else ""
            said.append(
                f"{len(damaged) + unknown} blocks that were not registered are damaged: "
                f"{sum(damaged)} records lost{more}"
            )
        if found.gone_blocks:
            said.append(f"{found.gone_blocks} registered blocks, {found.gone_records} records, went with their file")
        if found.damaged_registered:
            said.append(f"{found.damaged_registered} frames of registered blocks are damaged, their batches may fail")
        if found.damaged_letters:
            said.append(f"{found.damaged_letters} dead letters are damaged")
        if found.damaged_moves:
            said.append(
                f"{found.damaged_moves} notes with positions of channels are damaged: where the driver log has lost "
                "commits, compare what senders have with `forebay channels`"
            )
        if found.unreadable_bytes:
            said.append(f"{found.unreadable_bytes} bytes hold no frame that can be read")
        if said:
            paths = ", ".join(segment.path for segment in segments[:3]) + (" …" if len(segments) > 3 else "")  # noqa: PLR2004
            self.report(
                ReceiverEventKind.ERROR,
                "segments of an earlier process are damaged",
                f"epoch {found.epoch}: {'; '.join(said)}; in {paths}; see {RUNBOOK}",
            )


def _counted(blocks: Sequence[SalvagedBlock]) -> str:
    return f"{len(blocks)} blocks, {sum(block.records for block in blocks)} records"


def _numbers(blocks: Sequence[SalvagedBlock]) -> str:
    return f"sequences {blocks[0].sequence}..{blocks[-1].sequence}"
