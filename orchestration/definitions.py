"""Defines `defs`, the code location that workspace.yaml names, with the pipelines of the module FOREBAY_MODULE.

Raises ModuleMissingError if no module is named: the pipelines of another module must never meet the user's driver log.
"""

from __future__ import annotations

from orchestration.dagster_defs.build_definitions import build_definitions
from orchestration.declarations.modules import load_pipelines
from orchestration.declarations.settings import Settings

defs = build_definitions(*load_pipelines(Settings().require_module()))
