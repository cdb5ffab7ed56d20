"""Say what the `forebay up` of this home runs: the module of a command that names none, and what it declares.

Children of `forebay up` never use it: their module is given to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.cli.services.supervisor_lock import lock_holder
from orchestration.declarations.apply import absent_pipelines, still_applied, streams_read
from orchestration.declarations.compatibility import declared, needs_a_person
from orchestration.declarations.project_code import CodeCopies
from orchestration.declarations.settings import ModuleMissingError
from tracker_store.batches.pipelines import list_pipelines
from tracker_store.host.code_in_force import NO_CODE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Pipeline
    from orchestration.declarations.settings import Settings
    from tracker_store.host.code_in_force import CodeState

#: Ends the help of an argument that `named_module` takes.
UNLESS_GIVEN = "unless given, FOREBAY_MODULE, the project's, or that of the running `forebay up`"


def named_module(given: str | None, settings: Settings) -> str:
    """Return the module that is given, else the settings', else the running one's. Raises ModuleMissingError."""
    try:
        return given or settings.require_module()
    except ModuleMissingError:
        module = CodeCopies(settings.home).module() if lock_holder(settings.home) is not None else ""
        if not module:
            raise
        return module


def runs_here(module: str, settings: Settings) -> bool:
    """Return whether the `forebay up` of this home runs the module. Another host's takes its own files."""
    return lock_holder(settings.home) is not None and CodeCopies(settings.home).module() == module


def declared_here(settings: Settings, module: str | None = None) -> Mapping[str, Any] | None:
    """Return what the code in force of the `forebay up` of this home declares; None without one, or if it runs another.

    module: the one that it must run; None: any.
    """
    is_here = lock_holder(settings.home) is not None if module is None else runs_here(module, settings)
    return CodeCopies(settings.home).declared() if is_here else None


def left_to_a_person(
    connection: sa.Connection, module: str, pipelines: Sequence[Pipeline], settings: Settings
) -> list[str]:
    """Return what the `forebay up` of this home would not do by itself, and the pipelines that no code here has."""
    before = declared_here(settings, module)
    if before is None:
        return absent_pipelines(connection, pipelines)
    waits = needs_a_person(
        still_applied(connection, before), declared(pipelines), streams_read(list_pipelines(connection))
    )
    return waits + absent_pipelines(connection, pipelines, running=before["pipelines"], lost=before["lost"])


def lost_here(connection: sa.Connection, module: str, pipelines: Sequence[Pipeline], settings: Settings) -> list[str]:
    """Return what becomes of the pipelines that no code here has once these declarations are in force."""
    before = declared_here(settings, module)
    lost = () if before is None else (*before["pipelines"], *before["lost"])
    return absent_pipelines(connection, pipelines, lost=lost)


def code_state(settings: Settings) -> CodeState:
    """Return what is known of the code of the `forebay up` of this home; nothing without one."""
    return CodeCopies(settings.home).state() if lock_holder(settings.home) is not None else NO_CODE
