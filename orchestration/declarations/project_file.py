"""Read a user's project file: `[tool.forebay]` of the working directory's pyproject.toml, which names its modules.

It is read, and never written. All other settings are environment variables: a checkout must not decide where data goes.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT_FILE = "pyproject.toml"
_TABLE = "[tool.forebay]"
_SETTINGS = frozenset({"module", "definitions"})


class ProjectFileError(Exception):
    """Correct the project file, which can't be used. The message names it, and what is wrong."""


def project_module() -> str | None:
    """Return the module that the project in the working directory names; None: it names none, or there is no project.

    Raises ProjectFileError.
    """
    return _named("module")


def project_definitions() -> str | None:
    """Return the module with the project's own Dagster definitions, or None. Raises ProjectFileError."""
    return _named("definitions")


def _named(setting: str) -> str | None:
    path = Path.cwd() / PROJECT_FILE
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProjectFileError(f"{path}: {error}: correct it, or name the module (`forebay up my_pipeline`)") from error
    tool = found.get("tool", {})
    table = tool.get("forebay", {}) if isinstance(tool, dict) else {}
    unknown = sorted(table.keys() - _SETTINGS) if isinstance(table, dict) else [f"tool.forebay = {table!r}"]
    if unknown:
        raise ProjectFileError(
            f'{path}: {_TABLE} has no setting {", ".join(unknown)}: its settings are module = "my_pipeline" and '
            'definitions = "my_assets"; all others are environment variables, FOREBAY_…'
        )
    module = table.get(setting)
    if module is not None and not (isinstance(module, str) and module):
        raise ProjectFileError(f"{path}: {_TABLE}: {setting} = {module!r} is no name of a module")
    return module
