"""Make the environment of a child process: the agent's own, without the secrets that the child does not need."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def environment_without(names: Collection[str]) -> dict[str, str]:
    """Return this process's environment without these variables."""
    return {name: value for name, value in os.environ.items() if name not in names}
