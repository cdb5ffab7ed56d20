"""Print errors that a user can fix as one sentence, without a stack trace."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import ValidationError

    from forebay.cli.terminal.console import Console


class CommandError(Exception):
    """Say why a command can't do what was asked, and what to do instead."""


def _known_errors() -> tuple[type[Exception], ...]:
    """Return the known errors. They are imported only after an error: this saves half a second in other commands."""
    from orchestration.declarations.declaration_error import DeclarationError  # noqa: PLC0415
    from orchestration.declarations.modules import PipelineModuleError  # noqa: PLC0415
    from orchestration.declarations.project_file import ProjectFileError  # noqa: PLC0415
    from orchestration.declarations.settings import DatabaseUrlMissingError, ModuleMissingError  # noqa: PLC0415
    from orchestration.replays.replay_choice import ReplayError  # noqa: PLC0415
    from orchestration.tracker.http.listen_address import ListenAddressError  # noqa: PLC0415
    from receiver_runtime.block_store.frames.errors import BlockStoreError  # noqa: PLC0415
    from tracker_store.connection.errors import DriverLogError  # noqa: PLC0415

    return (
        BlockStoreError,
        CommandError,
        DatabaseUrlMissingError,
        DeclarationError,
        DriverLogError,
        ListenAddressError,
        ModuleMissingError,
        PipelineModuleError,
        ProjectFileError,
        ReplayError,
    )


def _exit_code(error: Exception) -> int:
    """Return 2, as for other mistakes in a command's arguments, if no module was named; 1 for all else."""
    from orchestration.declarations.settings import ModuleMissingError  # noqa: PLC0415  as above

    return 2 if isinstance(error, ModuleMissingError) else 1


@contextmanager
def clear_errors(console: Console | None = None) -> Iterator[None]:
    """Print a known error and exit with 1, or 2; any other error is a bug and keeps its stack trace.

    `console`: None: standard error, of a process that prints nothing else and so need not load rich.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, _known_errors()):
            raise
        if console is None:
            from forebay.cli.terminal.console import Console  # noqa: PLC0415  as above

            console = Console(stderr=True, highlight=False)
        # The terminal wraps it: a name that is copied from it must be whole.
        console.print(str(error), style="bold red", markup=False, soft_wrap=True)
        raise typer.Exit(_exit_code(error)) from error


def wrong_settings(error: ValidationError) -> list[tuple[str, str]]:
    """Return each environment variable that can't be used, and why, without its value: it may be a secret."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [(f"FOREBAY_{str(wrong['loc'][0]).upper()}", wrong["msg"]) for wrong in found]


def settings_fault(error: Exception) -> str | None:
    """Return in one line which settings can't be used; None: that is not what the error says."""
    from pydantic import ValidationError  # noqa: PLC0415  as above

    from tracker_store.connection.errors import NoPostgresUrlError  # noqa: PLC0415  as above

    if isinstance(error, NoPostgresUrlError):
        return str(error)
    if not isinstance(error, ValidationError) or error.title != "Settings":
        return None
    wrong = [f"{name}: {why.removeprefix('Value error, ')}" for name, why in wrong_settings(error)]
    return f"{'; '.join(wrong)}. Correct or unset it; `forebay config` lists the settings."
