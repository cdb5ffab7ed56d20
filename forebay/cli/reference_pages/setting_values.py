"""Say which value each setting has and where it comes from. Owns how a setting is written for people.

It never returns a secret: addresses and tokens are masked by their types, and Spark's configuration as Spark masks it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.cli.instance.dagster_home import DATABASE_VARIABLE, TOKEN_FILE, kept_token
from forebay.cli.services.run_files import TOKEN_VARIABLE
from orchestration.declarations.project_file import PROJECT_FILE, project_module
from orchestration.declarations.settings import Settings
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.sources.fields.units import duration_text
from tracker_store.close_names import close_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

PREFIX = "FOREBAY_"
UNSET = "unset"
#: Variables of command options, with what they set.
OPTION_VARIABLES = {
    "FOREBAY_RECEIVERS_PER_PROCESS": "forebay agent --receivers-per-process",
    "FOREBAY_BATCH_DRIVERS": "forebay agent --batch-drivers",
}
# Variables that Forebay sets for its own processes.
_INTERNAL = frozenset({DATABASE_VARIABLE, TOKEN_VARIABLE})
_MASK = "**********"
# Spark's default of spark.redaction.regex, and the keys of Azure and logins, which that leaves readable.
_SECRET = re.compile(r"secret|password|passwd|token|credential|(access|account|private|api)[._-]?key", re.IGNORECASE)


class Origin(StrEnum):
    """Say where a setting's value comes from.

    FILE: a file below FOREBAY_HOME that `forebay up` has written, or the project's pyproject.toml.
    """

    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class SettingValue:
    """Describe a setting as it holds here. `value` and `default` are as they would be written in the variable, masked.

    `where` is the variable or the file that gives the value; "" for a default.
    """

    variable: str
    value: str
    origin: Origin
    where: str
    default: str
    description: str


@dataclass(frozen=True, slots=True)
class UnknownVariable:
    """Name a variable in the environment that looks like a setting's misspelled name. Its value is not held."""

    variable: str
    meant: str


def setting_values(settings: Settings, environment: Mapping[str, str]) -> list[SettingValue]:
    """Return every setting in the order of its declaration. `environment`: the one that the settings were read from.

    Raises ProjectFileError.
    """
    # pydantic-settings reads a variable in any case.
    given = {name.upper(): name for name in environment}
    found = []
    for name, field in Settings.model_fields.items():
        variable = PREFIX + name.upper()
        default = shown(field.get_default(call_default_factory=True))
        value, origin, where = default, Origin.DEFAULT, ""
        if variable in given:
            value, origin, where = shown(getattr(settings, name)), Origin.ENVIRONMENT, given[variable]
        elif name == "dagster_token" and kept_token(directory := settings.home.absolute() / "dagster") is not None:
            value, origin, where = _MASK, Origin.FILE, str(directory / TOKEN_FILE)
        elif name == "module" and (module := project_module()) is not None:
            value, origin, where = module, Origin.FILE, str(Path.cwd() / PROJECT_FILE)
        found.append(SettingValue(variable, value, origin, where, default, field.description or ""))
    return found


def unknown_variables(environment: Mapping[str, str]) -> list[UnknownVariable]:
    """Return the variables that no setting and no option has, and whose names are close to one that exists."""
    known = [*(PREFIX + name.upper() for name in Settings.model_fields), *OPTION_VARIABLES]
    strange = sorted(
        name
        for name in environment
        if name.upper().startswith(PREFIX) and name.upper() not in known and name.upper() not in _INTERNAL
    )
    close = ((name, close_name(name, known, alike=0.85)) for name in strange)
    return [UnknownVariable(name, meant) for name, meant in close if meant]


def shown(value: object) -> str:
    """Return a setting's value as it would be written in its variable, without secrets; `unset` if there is none."""
    # The types of addresses, tokens and references print themselves without secrets.
    text = str(value)
    match value:
        case None | () | {} if not value:
            text = UNSET
        case bool():
            text = text.lower()
        case timedelta():
            text = duration_text(value.total_seconds())
        case tuple():
            text = ",".join(map(str, value))
        case dict():
            text = json.dumps({key: _without_secret(key, one) for key, one in value.items()})
        case float():
            text = f"{value:g}"
    return text


def _without_secret(key: str, text: str) -> str:
    """Return a value of Spark's configuration, masked if its key or its own text names a secret, as Spark does it."""
    if _SECRET.search(key) or _SECRET.search(text):
        return _MASK
    return SecretUrl(text).shown if "://" in text else text


def as_rows(values: Sequence[SettingValue]) -> list[dict[str, Any]]:
    """Return the values as `forebay config --json` prints them: null where nothing is set."""
    return [
        {
            "setting": one.variable,
            "value": None if one.value == UNSET else one.value,
            "from": str(one.origin),
            "where": one.where or None,
            "default": None if one.default == UNSET else one.default,
            "description": one.description,
        }
        for one in values
    ]
