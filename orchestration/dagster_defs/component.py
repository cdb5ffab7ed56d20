"""Offer Forebay's pipelines as a Dagster component, for projects that consist of `defs.yaml` files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from orchestration.dagster_defs.build_definitions import build_definitions
from orchestration.declarations.modules import PipelineModuleError, load_pipelines

if TYPE_CHECKING:
    from dagster.components import ComponentLoadContext


class PipelineComponent(dg.Component, dg.Model, dg.Resolvable):
    """Load the pipelines that a Python module declares: their assets, checks, jobs, sensors and schedules.

    `module` has the same form as for `forebay up`: `package.module`, or a path to a .py file.
    """

    module: str

    def build_defs(self, context: ComponentLoadContext) -> dg.Definitions:
        """Return the result of `build_definitions`. Raises DagsterInvalidDefinitionError if there are no pipelines."""
        module = self.module
        if module.endswith(".py"):
            # Like other paths in a defs.yaml, it is relative to the file's folder.
            module = str(context.path / module)
        try:
            return build_definitions(*load_pipelines(module))
        except PipelineModuleError as error:
            raise dg.DagsterInvalidDefinitionError(f"{context.path / 'defs.yaml'}: {error}") from error
