"""Check a project's own Dagster definitions, as the code server of `forebay up` loads them. It runs none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.cli.checks.findings import Finding, Health
from orchestration.declarations.modules import PipelineModuleError, said_in_a_line
from orchestration.declarations.project_file import project_definitions, project_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestration.declarations.pipeline import Pipeline


def check_definitions(module: str, pipelines: Sequence[Pipeline]) -> Iterator[Finding]:
    """Load the definitions that the project names, beside its pipelines; nothing for another module's pipelines."""
    name = project_definitions() if module == project_module() else None
    if name is None:
        return
    # Dagster takes seconds to load.
    import dagster as dg  # noqa: PLC0415

    from orchestration.dagster_defs.build_definitions import build_definitions  # noqa: PLC0415
    from orchestration.dagster_defs.own_definitions import with_own_definitions  # noqa: PLC0415

    try:
        dg.Definitions.validate_loadable(with_own_definitions(build_definitions(*pipelines), name))
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a user's module does when it is imported
        said = str(error) if isinstance(error, PipelineModuleError) else f"{name}: {said_in_a_line(error)}"
        yield Finding(
            "definitions", Health.FAILED, said, f"Correct {name}, which `definitions` of [tool.forebay] names."
        )
    else:
        yield Finding("definitions", Health.OK, name)
