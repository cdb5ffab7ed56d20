"""Ask OSV (https://osv.dev) which locked packages have known vulnerabilities: names and versions, in one request.

It never says that a package is sound: if the service can't be asked, it raises.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from release.lock_file import LockedPackage

SERVICE = "https://api.osv.dev"
_TIMEOUT_SECONDS = 30


class NotCheckedError(Exception):
    """Known vulnerabilities were not checked: run `make audit` where https://api.osv.dev can be reached."""


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """Name a known vulnerability of a locked package, by its id in OSV."""

    package: str
    version: str
    identifier: str


def known_vulnerabilities(packages: Sequence[LockedPackage], service: str = SERVICE) -> list[Vulnerability]:
    """Return all known ones, in the order of the packages. Raises NotCheckedError."""
    queries = [
        {"package": {"ecosystem": "PyPI", "name": package.name}, "version": package.version} for package in packages
    ]
    request = urllib.request.Request(  # noqa: S310  the address is ours, or a test's
        f"{service}/v1/querybatch",
        json.dumps({"queries": queries}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310  as above
            results = json.load(answer)["results"]
        # A batch may be answered in pages. The first one is enough to know that a package has vulnerabilities.
        pairs = zip(packages, results, strict=True)
        return [
            Vulnerability(package.name, package.version, one["id"])
            for package, result in pairs
            for one in (result or {}).get("vulns", ())
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotCheckedError(f"{service}: {error}") from error
