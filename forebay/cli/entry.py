"""Start the command `forebay`: choose what structlog loads, then run the command."""

from __future__ import annotations

import sys


def load_structlog_without_rich() -> None:
    """Import structlog as it is where rich is not installed.

    Else it loads rich and pygments, 4 MiB of each process, for tracebacks that Forebay's log does not have
    (``tracker_store.host.process_output``). Commands that print with rich import it later, as ever.
    """
    if "rich" in sys.modules:
        return
    # None: an import of it fails.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401, PLC0415  loaded for those that import it later
    finally:
        del sys.modules["rich"]


def main() -> None:
    """Run the command, or answer a shell that completes one."""
    load_structlog_without_rich()
    from forebay.cli.main import app  # noqa: PLC0415  after structlog

    try:
        app(prog_name="forebay")
    except Exception as error:
        from forebay.cli.terminal.failures import settings_fault  # noqa: PLC0415  most commands need no pydantic

        if (fault := settings_fault(error)) is None:
            raise
        sys.exit(fault)
