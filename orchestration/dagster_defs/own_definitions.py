"""Merge a project's own Dagster definitions with those that Forebay makes of its pipelines.

Under `forebay up` there is one code location: `definitions` of `[tool.forebay]` names the module with a user's own
assets, checks, jobs and sensors.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dagster as dg

from orchestration.declarations.modules import PipelineModuleError, imported


def with_own_definitions(defs: dg.Definitions, module_name: str | None) -> dg.Definitions:
    """Return definitions with those of a module, which has one `dagster.Definitions` at its top level; None: no module.

    A module that has the pipelines' definitions too, as one for an instance of a user's own does, is taken as it is.
    Raises PipelineModuleError, and what Dagster raises of definitions that do not go together.
    """
    if module_name is None:
        return defs
    # As for the pipelines: with the project in the working directory.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module = imported(module_name, str(Path.cwd()), role=" (`definitions` of [tool.forebay])")
    found = [value for value in vars(module).values() if isinstance(value, dg.Definitions)]
    if len(found) != 1:
        message = f"module {module_name!r} needs one dagster.Definitions at its top level, and has {len(found)}"
        raise PipelineModuleError(message)
    ours, theirs = _jobs(defs), _jobs(found[0])
    if ours <= theirs:
        return found[0]
    if ours & theirs:
        message = (
            f"module {module_name!r} has the jobs {', '.join(sorted(ours & theirs))} and not "
            f"{', '.join(sorted(ours - theirs))}: let it call build_definitions with all pipelines, or not at all"
        )
        raise PipelineModuleError(message)
    return dg.Definitions.merge(defs, found[0])


def _jobs(defs: dg.Definitions) -> set[str]:
    return {job.name for job in defs.jobs or ()}
