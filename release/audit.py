"""Check what an installation consists of. A program: `make audit`, or `python -m release.audit`.

1. Each package of uv.lock comes from PyPI and has hashes, or is this repository.
2. The bundled programs are those of `bundled.toml`, which has their release dates.
3. No locked package has a known vulnerability: `uv audit` asks OSV.

Its exit code is 0 if all of it holds, 1 if something does not, and 3 if nothing is wrong but vulnerabilities could not
be checked. It changes nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from uv import find_uv_bin

from release import bundled_programs, lock_file

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
SERVICE = "https://api.osv.dev"
PROBLEMS = 1
NOT_CHECKED = 3
_VULNERABLE = 1  # uv's exit code
_TIMEOUT_SECONDS = 120  # for one request for all packages, with uv's own retries


def main(arguments: Sequence[str]) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m release.audit",
        description="Check hashes and sources in uv.lock, bundled programs, and known vulnerabilities. "
        "Exit code: 0 all holds, 1 something does not, 3 nothing is wrong but vulnerabilities were not checked.",
    )
    parser.add_argument("--service", default=SERVICE, help=f"another OSV service than {SERVICE}")
    service = parser.parse_args(arguments).service
    packages = lock_file.locked_packages(ROOT / "uv.lock")
    programs = bundled_programs.read_bundled_programs()
    problems = [*lock_file.problems(packages), *bundled_programs.problems(programs, packages)]
    today = datetime.now(UTC).date()
    lines = [f"uv.lock: {len(packages)} packages, {sum(len(lock_file.files(one)) for one in packages)} files"]
    lines += [
        f"bundled: {one.name} {one.version}, released {one.released} ({(today - one.released).days} days ago), "
        f"in {one.package} {one.package_version}: {one.use}"
        for one in programs
    ]
    lines += [f"PROBLEM: {problem}" for problem in problems]
    found, said = known_vulnerabilities(service)
    lines += [said, "known vulnerabilities: " + {True: "FOUND", False: "none", None: "NOT CHECKED"}[found]]
    sys.stdout.write("\n".join([*lines, ""]))
    if problems or found:
        return PROBLEMS
    return NOT_CHECKED if found is None else 0


def known_vulnerabilities(service: str = SERVICE) -> tuple[bool | None, str]:
    """Return whether a locked package has known vulnerabilities (None: not checked), and what uv says of them."""
    command = [find_uv_bin(), "audit", "--frozen", "--no-python-downloads"]
    command += ["--preview-features", "audit-command", "--service-url", f"{service}/"]
    try:
        done = subprocess.run(  # noqa: S603  uv, of this environment
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        return None, str(error)
    return {0: False, _VULNERABLE: True}.get(done.returncode), done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
