"""Print the tables of docs/explanation/reliability.md from reports: ``python -m tests.chaos.results REPORT.json…``."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COLUMNS = (
    *("seed", "layout", "replicas", "minutes of faults", "faults", "batches", "records acknowledged", "violations"),
    *("longest calm", "`status`: median, longest", "load per core"),
)


def tables(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of runs and one of faults by kind, in Markdown."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    injected: dict[str, Counter[str]] = {}
    for report in reports:
        layout = str(report["layout"])
        counts = injected.setdefault(layout, Counter())
        for kind, faults in report["faults"].items():
            counts[kind] += faults.get("injected", 0)
        status = report["status"]
        violations = Counter(violation["kind"] for violation in report["violations"])
        cells = (
            report["seed"],
            layout,
            report["replicas"],
            f"{report['minutes']:g}",
            sum(faults.get("injected", 0) for faults in report["faults"].values()),
            f"{report['batches']:,}",
            f"{sum(source['acknowledged'] for source in report['records'].values()):,}",
            ", ".join(f"{count} {kind}" for kind, count in sorted(violations.items())) or "none",
            f"{max(report['calm_seconds'], default=0):.0f} s" if report["calm_seconds"] else "never",
            f"{status['median_seconds']:.1f} s, {status['longest_seconds']:.1f} s" if status else "",
            f"{status['load_per_core']:.1f}" if status else "",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    layouts = sorted(injected)
    longest: dict[str, float] = {}
    for report in reports:
        for kind, seconds in report["status_longest_by_fault"].items():
            longest[kind] = max(longest.get(kind, 0.0), seconds)
    lines += ["", f"| fault | {' | '.join(f'layout {layout}' for layout in layouts)} | longest answer of `status` |"]
    lines.append(f"|---|{'---|' * len(layouts)}---|")
    for kind in sorted(set().union(*injected.values())):
        answer = f"{longest[kind]:.1f} s" if kind in longest else ""
        lines.append(f"| `{kind}` | {' | '.join(str(injected[layout][kind] or '') for layout in layouts)} | {answer} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(tables([json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]) + "\n")
