"""Forebay's pipelines as a component of Dagster's own, for projects that are made of `defs.yaml` files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from orchestration.dagster_defs.build_definitions import build_definitions
from orchestration.modules import PipelineModuleError, load_pipelines

if TYPE_CHECKING:
    from dagster.components import ComponentLoadContext


class PipelineComponent(dg.Component, dg.Model, dg.Resolvable):
    """The pipelines that a Python module declares: their assets, checks, jobs, sensors and schedules.

    `module` is what `forebay up` takes too: `package.module`, or a path to a .py file.
    """

    module: str

    def build_defs(self, context: ComponentLoadContext) -> dg.Definitions:
        """What `build_definitions` gives. Raises DagsterInvalidDefinitionError for a module without pipelines."""
        module = self.module
        if module.endswith(".py"):
            # As other paths in a defs.yaml: from the folder that it lies in.
            module = str(context.path / module)
        try:
            return build_definitions(*load_pipelines(module))
        except PipelineModuleError as error:
            raise dg.DagsterInvalidDefinitionError(f"{context.path / 'defs.yaml'}: {error}") from error
