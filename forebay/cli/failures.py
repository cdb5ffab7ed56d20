"""Errors that a user can mend are shown as one sentence, without a stack."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from orchestration.modules import PipelineModuleError
from orchestration.replay import ReplayError
from orchestration.settings import DatabaseUrlMissingError
from orchestration.tracker.listen_address import ListenAddressError
from tracker_store.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


@contextmanager
def clear_errors(console: Console) -> Iterator[None]:
    """Print a known error and exit with 1; anything else is a bug and keeps its stack."""
    try:
        yield
    except (DatabaseUrlMissingError, DriverLogError, ListenAddressError, PipelineModuleError, ReplayError) as error:
        console.print(str(error), style="bold red", markup=False)
        raise typer.Exit(1) from error
