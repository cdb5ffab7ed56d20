"""Defines `defs`, the code location that workspace.yaml names: the pipelines of FOREBAY_MODULE, and the project's own.

Raises ModuleMissingError if no module is named: the pipelines of another module must never meet the user's driver log.
"""

from __future__ import annotations

from orchestration.dagster_defs.build_definitions import build_definitions
from orchestration.dagster_defs.own_definitions import with_own_definitions
from orchestration.declarations.modules import load_pipelines
from orchestration.declarations.project_file import project_definitions
from orchestration.declarations.settings import Settings

# The pipelines first: with them the version of the code that is in force is loaded.
defs = with_own_definitions(build_definitions(*load_pipelines(Settings().require_module())), project_definitions())
