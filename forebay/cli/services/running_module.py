"""Find the module of a command that names none: the settings', else that of the `forebay up` of this home.

Children of `forebay up` never use it: their module is given to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.cli.services.supervisor_lock import lock_holder
from orchestration.declarations.project_code import CodeCopies
from orchestration.declarations.settings import ModuleMissingError

if TYPE_CHECKING:
    from orchestration.declarations.settings import Settings

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
