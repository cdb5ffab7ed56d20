"""Draw ARCHITECTURE.md's pictures: the rooms of each package with the imports between them, and the state machines.

Run as ``python -m release.architecture``, it writes them between the page's marks; a test compares. An arrow that other
arrows imply is left out. It changes nothing else, and no product code imports it.
"""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
#: Packages whose folders are the rooms, from the top down.
PACKAGES = ("forebay.cli", "orchestration", "receiver_runtime", "tracker_store")
#: Each machine: its table of transitions, as MODULE:NAME.
MACHINES = {
    "receiver": "tracker_store.schema.states:RECEIVER_TRANSITIONS",
    "pipeline": "tracker_store.schema.states:PIPELINE_TRANSITIONS",
    "batch": "tracker_store.schema.states:BATCH_TRANSITIONS",
    "attempt": "tracker_store.schema.states:ATTEMPT_TRANSITIONS",
    "segment": "tracker_store.schema.states:SEGMENT_TRANSITIONS",
    "replay forward": "tracker_store.schema.states:STATE_REPLAY_TRANSITIONS",
    "batch driver": "tracker_store.schema.states:BATCH_DRIVER_TRANSITIONS",
    "what a batch driver does": "orchestration.run_launcher.driver_state:DRIVER_TRANSITIONS",
    "block generator": "receiver_runtime.block_path.generator_state:TRANSITIONS",
    "receiver supervisor": "receiver_runtime.supervisor.lifecycle:TRANSITIONS",
    "codec of a receiver's blocks": "receiver_runtime.block_path.load.codec_choice:TRANSITIONS",
    "child of `forebay up`": "forebay.cli.services.child:CHILD_TRANSITIONS",
}
_MARKS = re.compile(r"(<!-- (rooms|machines): `python -m release.architecture` -->\n).*?(<!-- end -->)", re.DOTALL)


def rooms(package: str) -> dict[str, set[str]]:
    """Return the folders of a package, each with those that its modules import from."""
    folder = ROOT / package.replace(".", "/")
    found: dict[str, set[str]] = {path.name: set() for path in folder.iterdir() if (path / "__init__.py").exists()}
    for room, others in found.items():
        for path in (folder / room).rglob("*.py"):
            others |= {other for other in _imported(path, package) if other in found and other != room}
    return {room: others for room, others in found.items() if others or any(room in some for some in found.values())}


def _imported(path: Path, package: str) -> Iterator[str]:
    """Yield the folders of a package, and its own modules, that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        for name in names:
            if name.startswith(f"{package}."):
                yield name.removeprefix(f"{package}.").partition(".")[0]


def reachable(arrows: Mapping[str, set[str]], start: str) -> set[str]:
    """Return what follows from a room's arrows, directly or not."""
    found: set[str] = set()
    waiting = list(arrows[start])
    while waiting:
        room = waiting.pop()
        if room not in found:
            found.add(room)
            waiting += arrows[room]
    return found


def needed(arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the arrows without those that others imply."""
    return {
        room: {to for to in others if not any(to in reachable(arrows, through) for through in others if through != to)}
        for room, others in arrows.items()
    }


def picture_of_rooms() -> str:
    """Return the rooms and their arrows as a mermaid flowchart."""
    lines = ["```mermaid", "flowchart TD"]
    for package in PACKAGES:
        short = package.replace(".", "_")
        lines.append(f"subgraph {short}[{package}]")
        for room, others in sorted(needed(rooms(package)).items()):
            arrows = " & ".join(f"{short}_{to}" for to in sorted(others))
            lines.append(f"  {short}_{room}[{room}]{f' --> {arrows}' if arrows else ''}")
        lines.append("end")
    lines += [
        "forebay_cli & forebay_contrib --> orchestration",
        "orchestration --> receiver_runtime_block_store & receiver_runtime_sources & tracker_store",
        "receiver_runtime --> tracker_store",
        "```",
    ]
    return "\n".join(lines)


def pictures_of_machines() -> str:
    """Return each state machine as a mermaid state diagram, from its table."""
    parts = []
    before = ""
    for name, place in MACHINES.items():
        module, _, table = place.partition(":")
        transitions = getattr(import_module(module), table)
        link = "" if module == before else f" ([{module.rpartition('.')[2]}.py]({module.replace('.', '/')}.py))"
        before = module
        lines = [f"**{name}**{link}", "", "```mermaid", "stateDiagram-v2"]
        for state, following in transitions.items():
            lines += [f"  {state.name} --> {to.name}" for to in sorted(following, key=lambda one: str(one.name))]
            if not following:
                lines.append(f"  {state.name} --> [*]")
        parts.append("\n".join([*lines, "```"]))
    return "\n\n".join(parts)


def drawn(page: str) -> str:
    """Return the page with its pictures as they should be."""
    parts = {"rooms": picture_of_rooms, "machines": pictures_of_machines}
    return _MARKS.sub(lambda mark: f"{mark[1]}\n{parts[mark[2]]()}\n\n{mark[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
