"""Say which secrets each child process does not need, by the environment variables that hold them.

A child inherits its parent's environment, so without this each would have every secret. Owns the lists; the processes
that start children leave the variables out. It never reads a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.cli.instance.dagster_home import DATABASE_VARIABLE
from tracker_store.connection.pooler import DIRECT_URL_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestration.declarations.pipeline import Pipeline
    from orchestration.declarations.settings import Settings

TRACKER_TOKENS = frozenset({"FOREBAY_TRACKER_TOKEN", "FOREBAY_TRACKER_WRITE_TOKEN"})
DAGSTER_TOKEN = "FOREBAY_DAGSTER_TOKEN"  # noqa: S105  a variable's name
BLOCK_STORE = "FOREBAY_BLOCK_STORE"
_ENV = "env:"

# Libraries read such variables themselves (libpq, the clients of object stores), and so do Forebay and Dagster: that an
# output names one too does not say that nothing else needs it.
_READ_WITHOUT_A_REFERENCE = ("AWS_", "AZURE_", "DAGSTER_", "FOREBAY_", "GOOGLE_", "PG")

#: Batch drivers and the code server serve no tracker's API, and ask no webserver. They keep the secrets of sources,
#: because they run your code, which may read any variable.
FROM_YOUR_CODE = TRACKER_TOKENS | {DAGSTER_TOKEN}
# A receiver does not write to Dagster's database either, and none of its statements needs a session of its own.
_FROM_RECEIVERS = FROM_YOUR_CODE | {DATABASE_VARIABLE, DIRECT_URL_VARIABLE}


def from_receivers(settings: Settings, of_outputs: Iterable[str] = ()) -> frozenset[str]:
    """Return the variables that receivers do not need: also the keys that only decrypt blocks.

    of_outputs: the variables that only outputs name, from `only_of_outputs`.
    """
    keys = _variables_of(map(str, settings.block_keys_for_reading)) | frozenset(of_outputs)
    needed = () if settings.block_key is None else (str(settings.block_key),)
    return _FROM_RECEIVERS | (keys - _variables_of(needed))


def only_of_outputs(pipelines: Iterable[Pipeline]) -> frozenset[str]:
    """Return the variables of secrets that outputs name and no stream does.

    Return none if a stream has a receiver class of yours: its code may read any variable.
    """
    from orchestration.declarations.apply import declared_streams  # noqa: PLC0415  the agent needs no declarations

    pipelines = list(pipelines)
    streams = [stream.declaration() for stream in declared_streams(pipelines)]
    if any(stream["source"]["kind"] == "custom" for stream in streams):
        return frozenset()
    return _variables_of(_texts([pipeline.declaration() for pipeline in pipelines])) - _variables_of(_texts(streams))


def from_tracker(settings: Settings) -> frozenset[str]:
    """Return the variables that the tracker does not need: the block keys, because it decrypts nothing."""
    return _variables_of(str(reference) for reference in settings.block_key_references)


def from_dagsters_services(settings: Settings, pipelines: Iterable[Pipeline]) -> frozenset[str]:
    """Return the variables that Dagster's daemon and webserver do not need.

    These are the secrets of sources and outputs, the block keys, the block store's URL and the tokens of the tracker
    and the webserver (which is given its own): they load no code of yours and read no block. The code server runs your
    code, and keeps them.
    """
    from orchestration.declarations.apply import declared_streams  # noqa: PLC0415  the agent needs no declarations

    pipelines = list(pipelines)
    declarations = [stream.declaration() for stream in declared_streams(pipelines)]
    declarations += [pipeline.declaration() for pipeline in pipelines]
    return from_tracker(settings) | _variables_of(_texts(declarations)) | FROM_YOUR_CODE | {BLOCK_STORE}


def _variables_of(references: Iterable[str]) -> frozenset[str]:
    names = (one.removeprefix(_ENV) for one in references if one.startswith(_ENV))
    return frozenset(name for name in names if not name.startswith(_READ_WITHOUT_A_REFERENCE))


def _texts(value: Any) -> Iterable[str]:  # noqa: ANN401  JSON
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
