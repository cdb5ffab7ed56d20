"""Read a runbook of docs/runbooks: its sections, and the commands and statements that are marked `runnable`."""

from __future__ import annotations

import re
from pathlib import Path

RUNBOOKS = Path(__file__).parents[1] / "docs" / "runbooks"
#: The sections of each runbook, in their order.
HEADINGS = ["Symptom", "How to see it", "Cause", "Cure", "How to know that it is cured"]


def page(stem: str) -> str:
    """Return the text of a runbook."""
    return (RUNBOOKS / f"{stem}.md").read_text(encoding="utf-8")


def sections(stem: str) -> dict[str, str]:
    """Return the text of each section, by its heading."""
    return dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page(stem), re.MULTILINE | re.DOTALL))


def blocks(text: str, language: str) -> list[str]:
    """Return the runnable blocks of a language, in their order."""
    return re.findall(rf"^ *```{language} runnable\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
