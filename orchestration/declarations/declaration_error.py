"""Name the line of the user's declaration that can't work, in the error that it raises."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_PACKAGES = ("forebay", "forebay_contrib", "orchestration", "receiver_runtime", "tracker_store")
_ROOT = Path(__file__).parents[2]
# Which call Forebay by themselves: no line of theirs is that of a declaration.
_CALLERS = frozenset({"click", "dagster", "typer"})


class DeclarationError(ValueError):
    """Your declaration of a stream, pipeline or output can't work; the message says what to change, and where."""

    def __init__(self, message: str) -> None:
        """Append the line of the declaration, `location`, to the message."""
        self.location = _line_of_the_user(inspect.currentframe())
        super().__init__(message if self.location is None else f"{message} ({self.location})")


def _line_of_the_user(frame: FrameType | None) -> str | None:
    """Return FILE:LINE of the innermost frame that is not Forebay's own; None if that is its caller's, or all are."""
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] not in _CALLERS:
        path = Path(frame.f_code.co_filename)
        ours = any(path.is_relative_to(_ROOT / package) for package in _PACKAGES)
        if not ours and path.name and not path.name.startswith("<"):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return None
