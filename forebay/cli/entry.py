"""The entry point of the command `forebay`: a shell that asks for completions gets them without the commands."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command, or complete one."""
    if os.environ.get("_FOREBAY_COMPLETE", "").startswith("complete_"):
        from forebay.cli.completion import complete  # noqa: PLC0415  only for a shell

        complete()
        return
    from forebay.cli.main import app  # noqa: PLC0415  only where a command runs

    app(prog_name="forebay")
