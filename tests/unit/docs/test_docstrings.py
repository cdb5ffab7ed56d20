"""Check that a docstring says what its thing does, and does not begin by pointing at it."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = (
    *("benchmarks", "forebay", "forebay_contrib", "migrations", "orchestration"),
    *("receiver_runtime", "release", "tracker_store"),
)
#: Articles and question words.
REFUSED = frozenset({"a", "an", "the", "what", "where", "whether", "why", "which", "how", "who", "when", "whose"})


def test_no_docstring_begins_with_an_article_or_a_question_word() -> None:
    found = []
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path.parent.name != "tests")
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and text.split()[0].lower().strip(",:`") in REFUSED:
                    found.append(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert found == []
