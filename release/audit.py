"""Check what an installation consists of. A program: `make audit`, or `python -m release.audit`.

1. Each package of uv.lock comes from PyPI and has hashes, or is this repository.
2. The bundled programs are those of `bundled.toml`, which has their release dates.
3. No locked package has a known vulnerability, if the service that knows them can be reached.

Its exit code is 0 if all of it holds, 1 if something does not, and 3 if nothing is wrong but vulnerabilities could not
be checked. It changes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from release import bundled_programs
from release.lock_file import LockFileError, read_lock_file
from release.vulnerabilities import SERVICE, NotCheckedError, Vulnerability, known_vulnerabilities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from release.bundled_programs import BundledProgram
    from release.lock_file import LockFile

ROOT = Path(__file__).resolve().parents[1]
PROBLEMS = 1
NOT_CHECKED = 3


def main(arguments: Sequence[str]) -> int:
    """Run the program; return its exit code."""
    parsed = _parser().parse_args(arguments)
    programs = bundled_programs.read_bundled_programs()
    try:
        lock = read_lock_file(parsed.lock)
    except LockFileError as error:
        sys.stderr.write(f"{error}: {LockFileError.__doc__}\n")
        return PROBLEMS
    problems = [*lock.problems(), *bundled_programs.problems(programs, lock)]
    vulnerabilities, not_checked = _ask(lock, parsed.service)
    if parsed.json:
        text = json.dumps(_report(lock, programs, problems, vulnerabilities, not_checked), indent=2)
    else:
        text = "\n".join(_lines(lock, programs, problems, vulnerabilities, not_checked))
    sys.stdout.write(f"{text}\n")
    if problems or vulnerabilities:
        return PROBLEMS
    return 0 if not_checked is None else NOT_CHECKED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m release.audit",
        description="Check hashes and sources in uv.lock, bundled programs, and known vulnerabilities. "
        "Exit code: 0 all holds, 1 something does not, 3 nothing is wrong but vulnerabilities were not checked.",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--lock", type=Path, default=ROOT / "uv.lock", help="another lock file")
    parser.add_argument("--service", default=SERVICE, help=f"another OSV service than {SERVICE}")
    return parser


def _ask(lock: LockFile, service: str) -> tuple[list[Vulnerability], str | None]:
    """Return what is known, and why it was not checked (None: it was)."""
    try:
        return known_vulnerabilities([package for package in lock.packages if not package.is_own], service), None
    except NotCheckedError as error:
        return [], str(error)


def _report(
    lock: LockFile,
    programs: Sequence[BundledProgram],
    problems: Sequence[str],
    vulnerabilities: Sequence[Vulnerability],
    not_checked: str | None,
) -> dict[str, Any]:
    return {
        "packages": len(lock.packages),
        "files": sum(len(package.files) for package in lock.packages),
        "bundled_programs": [
            {
                "name": one.name,
                "version": one.version,
                "released": one.released.isoformat(),
                "age_days": _age_days(one),
                "package": f"{one.package} {one.package_version}",
                "use": one.use,
            }
            for one in programs
        ],
        "problems": list(problems),
        "vulnerabilities": {
            "checked": not_checked is None,
            "reason": not_checked,
            "found": [{"package": f"{one.package} {one.version}", "id": one.identifier} for one in vulnerabilities],
        },
    }


def _lines(
    lock: LockFile,
    programs: Sequence[BundledProgram],
    problems: Sequence[str],
    vulnerabilities: Sequence[Vulnerability],
    not_checked: str | None,
) -> list[str]:
    files = sum(len(package.files) for package in lock.packages)
    lines = [f"uv.lock: {len(lock.packages)} packages, {files} files"]
    lines += [
        f"bundled: {one.name} {one.version}, released {one.released} ({_age_days(one)} days ago), "
        f"in {one.package} {one.package_version}: {one.use}"
        for one in programs
    ]
    lines += [f"PROBLEM: {problem}" for problem in problems]
    lines += [f"VULNERABLE: {one.package} {one.version}: https://osv.dev/{one.identifier}" for one in vulnerabilities]
    if not_checked is not None:
        lines.append(f"known vulnerabilities: NOT CHECKED: {not_checked}")
    elif not vulnerabilities:
        lines.append("known vulnerabilities: none")
    return lines


def _age_days(program: BundledProgram) -> int:
    return (datetime.now(UTC).date() - program.released).days


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
