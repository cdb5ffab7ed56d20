"""Inject faults by seed into a whole system: ``python -m tests.chaos --minutes 10 --seed 1``, or ``make chaos``.

It starts the system as its users do (``--layout one`` or ``two``), sends numbered records, injects faults, lets the
system calm down, and checks that every acknowledged record came out exactly once and that nothing is left waiting. It
exits with 1 on a violation; then the data that the system left is kept, and the last lines say where it is and how to
repeat the run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tests.chaos.chaos_run import ChaosRun, Report
from tests.chaos.schedule import KINDS, Layout, chosen, schedule
from tests.chaos.system import OneHost, System, TwoHosts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

# The exit code of an interrupted run, as shells report it: 128 + SIGINT.
_INTERRUPTED = 130
_SYSTEMS: dict[Layout, type[System]] = {Layout.ONE: OneHost, Layout.TWO: TwoHosts}


def main() -> int:
    """Run the harness; return the exit code."""
    parser = _parser()
    arguments = parser.parse_args()
    console = Console(width=160, highlight=False, soft_wrap=True)
    try:
        kinds = chosen(arguments.faults)
    except ValueError as error:
        parser.error(str(error))
    if arguments.plan:
        for planned in schedule(arguments.seed, arguments.minutes * 60, kinds):
            console.print(f"round {planned.round + 1}, {planned.at:6.1f} s: {planned.kind} for {planned.seconds:g} s")
        return 0
    _enter_namespace()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    replicas = arguments.replicas or (2 if arguments.seed % 2 else 1)
    report = Report(arguments.seed, str(arguments.layout), replicas, arguments.minutes)
    root = Path(tempfile.mkdtemp(prefix="forebay-chaos-")).resolve()
    root.chmod(0o711)
    # Also keep the data when the harness itself fails.
    keep = True
    try:
        _run(arguments, kinds, report, root, console)
        keep = bool(report.violations) or arguments.keep
    except KeyboardInterrupt:
        keep = arguments.keep
        return _INTERRUPTED
    finally:
        _print(console, report)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(report.json(), indent=1), encoding="utf-8")
        if keep:
            options = f" --faults '{arguments.faults}'" if arguments.faults else ""
            console.print(
                f"kept: {root}\nagain: python -m tests.chaos --minutes {arguments.minutes:g} --seed {arguments.seed} "
                f"--layout {arguments.layout} --replicas {replicas} --rate {arguments.rate:g}{options}",
                markup=False,
            )
        else:
            shutil.rmtree(root, ignore_errors=True)
    return int(bool(report.violations))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, help="minutes of faults; start-up and calms are extra")
    add("--seed", type=int, default=1, help="decides which faults come when")
    add("--layout", type=Layout, default=Layout.ONE, choices=list(Layout), help="one host or two")
    add("--replicas", type=int, choices=(1, 2), help="replicas of the block store; default: two for an odd seed")
    add("--faults", default="", help="names or their beginnings; !NAME leaves one out; default: all")
    add("--rate", type=float, default=200.0, help="records per second, all sources together")
    add("--calm-seconds", type=float, default=180.0, help="how long the system may take to settle after a round")
    add("--status-seconds", type=float, default=5.0, help="how long an answer of `forebay status` may take")
    add("--json", type=Path, help="write the report to this file")
    add("--keep", action="store_true", help="keep the system's data even without a violation")
    add("--plan", action="store_true", help="print the schedule and do nothing")
    return parser


def _run(arguments: argparse.Namespace, kinds: Sequence[str], report: Report, root: Path, console: Console) -> None:
    with _SYSTEMS[arguments.layout](root, replicas=report.replicas, rate=arguments.rate) as system:
        lacking = {kind: lacks for kind in kinds if (lacks := system.lacks(kind))}
        for kind, lacks in lacking.items():
            console.print(f"left out: {kind}: needs {lacks}", markup=False)
        system.keep = True
        ChaosRun(
            system,
            report,
            [kind for kind in kinds if kind not in lacking],
            calm_seconds=arguments.calm_seconds,
            status_seconds=arguments.status_seconds,
            say=lambda line: console.print(line, markup=False),
        ).run()
        system.keep = bool(report.violations) or arguments.keep


def _enter_namespace() -> None:
    """Move to a mount namespace of this process's own where possible.

    Other processes don't see its mounts, and they end with it.
    """
    if os.geteuid() != 0 or os.environ.get("CHAOS_NAMESPACE") or shutil.which("unshare") is None:
        return
    unshare = ["unshare", "--mount", "--propagation", "private"]
    # Root in a container may lack the right to mount.
    if subprocess.run([*unshare, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False).returncode:
        return
    command = [*unshare, sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
    os.execvpe(command[0], command, {**os.environ, "CHAOS_NAMESPACE": "1"})


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _print(console: Console, report: Report) -> None:
    table = Table("fault", title=f"chaos: seed {report.seed}, layout {report.layout}, {report.replicas} replicas")
    for column in ("injected", "left out", "named"):
        table.add_column(column, justify="right")
    for kind, counts in report.by_kind().items():
        table.add_row(kind, *(str(counts[name] or "") for name in ("injected", "skipped", "named")))
    console.print(table)
    sources = Table("source")
    for column in ("sent", "acknowledged", "seen", "delivered"):
        sources.add_column(column, justify="right")
    for source, numbers in report.records.items():
        cells = (numbers.get(name) for name in ("sent", "acknowledged", "seen", "delivered"))
        sources.add_row(source, *("" if cell is None else f"{cell:,}" for cell in cells))
    console.print(sources)
    calms = ", ".join(f"{seconds:.0f}" for seconds in report.calms)
    console.print(f"{report.batches} batches completed; everything committed after a round: {calms or 'never'} s")
    console.print(f"status: {report.status}", markup=False)
    for text in report.restarts:
        console.print(f"restarted: {text}", markup=False)
    for number, violation in report.violations:
        console.print(f"VIOLATION in round {number}: {violation.kind}: {violation.text}", markup=False)
    console.print(f"{len(report.violations)} violations, {len(KINDS)} kinds of fault known")


if __name__ == "__main__":
    sys.exit(main())
