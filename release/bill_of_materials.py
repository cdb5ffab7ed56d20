"""Build the bill of materials of the wheel (CycloneDX 1.5): uv's export of uv.lock, and what the packages bundle.

It lists the versions with which Forebay is tested. The wheel allows others: an installation's own list is what its
package manager prints. The same input gives the same bytes: there is no time and no random number in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

from uv import find_uv_bin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from release.bundled_programs import BundledProgram

FILE_NAME = "forebay.cdx.json"


def bill_of_materials(root: Path, version: str, programs: Sequence[BundledProgram]) -> str:
    """Return the bill as JSON. `root` has uv.lock; `version`: that of Forebay. Raises CalledProcessError."""
    content = _exported(root, "--all-extras")
    required = {one["purl"] for one in _exported(root)["components"]}
    del content["serialNumber"], content["metadata"]["timestamp"]
    own = content["metadata"]["component"]
    own |= {"type": "application", "version": version, "purl": f"pkg:pypi/{own['name']}@{version}"}
    own["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    for component in content["components"]:
        component["scope"] = "required" if component["purl"] in required else "optional"
        bundled = [
            {
                "type": "application",
                "bom-ref": f"{component['purl']}#{program.name.lower()}-{program.version}",
                "name": program.name,
                "version": program.version,
            }
            for program in programs
            if program.is_in(component)
        ]
        if bundled:
            component["components"] = bundled
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return json.dumps({**content, "serialNumber": number.urn}, indent=1) + "\n"


def _exported(root: Path, *options: str) -> dict[str, Any]:
    """Return what is installed with these options, without what only tests need."""
    command = [find_uv_bin(), "export", "--quiet", "--frozen", "--no-dev", "--no-cache", "--python", sys.executable]
    command += ["--format", "cyclonedx1.5", "--preview-features", "sbom-export", *options]
    done = subprocess.run(command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)  # noqa: S603  uv
    content: dict[str, Any] = json.loads(done.stdout)
    return content
