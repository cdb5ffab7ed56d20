"""Build the bill of materials of the wheel (CycloneDX 1.6) from uv.lock and from the programs that packages bundle.

It lists the versions with which Forebay is tested. The wheel allows others: an installation's own list is what its
package manager prints. The same input gives the same bytes: there is no time and no random number in it.
Only the standard library: the build of the wheel imports it.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from release.lock_file import LockedPackage, Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from release.bundled_programs import BundledProgram
    from release.lock_file import LockFile

FILE_NAME = "forebay.cdx.json"
_SPECIFICATION = "1.6"
_SHA256 = "sha256:"


def bill_of_materials(lock: LockFile, version: str, programs: Sequence[BundledProgram]) -> str:
    """Return the bill as JSON. `version`: that of Forebay. Raises LockFileError."""
    needed = _closure(lock, [Requirement(lock.own.name, None, ())])
    with_extras = _closure(lock, [Requirement(lock.own.name, None, tuple(lock.own.extras))])
    packages = sorted(set(with_extras) - {lock.own}, key=lambda package: (package.name, package.version))
    root = f"pkg:pypi/{lock.own.name}@{version}"
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": _SPECIFICATION,
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": lock.own.name,
                "version": version,
                "purl": root,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": [
            _component(package, required=package in needed, programs=[one for one in programs if one.is_in(package)])
            for package in packages
        ],
        "dependencies": [
            {"ref": root if package.is_own else _purl(package), "dependsOn": sorted({_purl(one) for one in others})}
            for package, others in sorted(with_extras.items(), key=lambda item: (not item[0].is_own, _purl(item[0])))
        ],
    }
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return json.dumps({**content, "serialNumber": number.urn}, indent=1) + "\n"


def _closure(lock: LockFile, wanted: Iterable[Requirement]) -> dict[LockedPackage, list[LockedPackage]]:
    """Return each package that is needed, directly or not, and what it needs itself."""
    found: dict[LockedPackage, list[LockedPackage]] = {}
    left, seen = list(wanted), set[tuple[LockedPackage, str | None]]()
    while left:
        requirement = left.pop()
        package = lock.find(requirement)
        for extra in (None, *requirement.extras):
            if (package, extra) in seen:
                continue
            seen.add((package, extra))
            needed = package.requirements if extra is None else package.extras.get(extra, ())
            found.setdefault(package, []).extend(lock.find(one) for one in needed)
            left.extend(needed)
    return found


def _component(package: LockedPackage, *, required: bool, programs: Sequence[BundledProgram]) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _purl(package),
        "name": package.name,
        "version": package.version,
        "scope": "required" if required else "optional",
        "purl": _purl(package),
        "externalReferences": [
            {
                "type": "distribution",
                "url": file.url,
                "hashes": [{"alg": "SHA-256", "content": file.hash.removeprefix(_SHA256)}],
            }
            for file in package.files
            if file.hash is not None
        ],
    }
    if programs:
        component["components"] = [
            {
                "type": "application",
                "bom-ref": f"{_purl(package)}#{program.name.lower()}-{program.version}",
                "name": program.name,
                "version": program.version,
            }
            for program in programs
        ]
    return component


def _purl(package: LockedPackage) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"
