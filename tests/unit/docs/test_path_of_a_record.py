"""Check that the page walks the path in both halves, with a link to the module of each step."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "explanation" / "path-of-a-record.md"
#: Steps 1 to 4 lead from `Receiver.store` to `add_block`, steps 5 to 7 from a boundary to `commit_output`.
HALVES = {"receiving": range(1, 5), "batch": range(5, 8)}


@pytest.mark.parametrize("half", HALVES)
def test_each_half_of_the_path_is_walked_through_modules_that_are_there(half: str) -> None:
    steps = dict(
        re.findall(r"^(\d)\. (.*?)(?=^\d\. |^[A-Z])", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )
    text = "".join(steps[str(number)] for number in HALVES[half])
    links = [link for link in re.findall(r"\]\(([^)#\s]+)\)", text) if link.endswith((".py", ".sql"))]
    assert len(set(links)) >= 10
    assert [link for link in links if not (PAGE.parent / link).exists()] == []


def definitions() -> dict[str, list[ast.FunctionDef]]:
    """Return the functions of the product by the name that the page gives them."""
    found: dict[str, list[ast.FunctionDef]] = defaultdict(list)
    for package in ("orchestration", "receiver_runtime", "tracker_store"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef):
                    found[node.name].append(node)
                elif isinstance(node, ast.ClassDef):
                    for member in node.body:
                        if isinstance(member, ast.FunctionDef):
                            found[f"{node.name}.{member.name}"].append(member)
    return found


def test_each_call_that_the_page_names_is_made() -> None:
    [walks] = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = definitions()
    chains = [chain.split(" -> ") for chain in re.split(r"\s+~> |\n+", walks.strip())]
    assert sum(map(len, chains)) > 20
    assert [name for chain in chains for name in chain if name not in found] == []
    for chain in chains:
        for caller, called in pairwise(chain):
            name = called.rpartition(".")[2]
            calls = {
                node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
                for function in found[caller]
                for node in ast.walk(function)
            }
            assert name in calls, f"{caller} does not call {called}"
