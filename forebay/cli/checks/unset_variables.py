"""Say which environment variables new and changed sources and sinks refer to, and the process that runs them lacks.

`forebay up` gives its own environment to the processes that it starts, and withholds from receivers what only outputs
needed then. No sentence has a secret.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_REFERENCE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")


def unset_variables(
    before: Mapping[str, Any], now: Mapping[str, Any], of_outputs: Collection[str] = ()
) -> Iterator[str]:
    """Yield a sentence of `forebay up` for each source and sink of `now` that lacks a variable in this process.

    Those of `before` are left out. Both have the form of ``compatibility.declared``. of_outputs: the variables that
    receivers are not given.
    """
    for name, variables in _new(before, now):
        if unset := _unset(variables):
            yield (
                f"{name} refers to {unset}, which the environment of `forebay up` does not have, and without which "
                f"{_effect(name)}: set it there, and start `forebay up` again."
            )
        elif name.startswith("stream") and (withheld := sorted(variables.intersection(of_outputs))):
            yield (
                f"{name} refers to {', '.join(withheld)}, which receivers do not have, because only outputs referred "
                "to it when `forebay up` started: start `forebay up` again."
            )


def unset_here(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the same for `forebay apply`, which knows only its own environment."""
    return [
        f"{name} refers to {unset}, which this process does not have: {_effect(name)} where it is not set."
        for name, variables in _new(before, now)
        if (unset := _unset(variables))
    ]


def _new(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, set[str]]]:
    """Yield the variables of each source and sink that is new or has changed."""
    known = dict(_parts(before))
    for name, declaration in _parts(now):
        if known.get(name) != declaration:
            yield name, _variables(declaration)


def _unset(variables: Collection[str]) -> str:
    return ", ".join(sorted(one for one in variables if not os.environ.get(one)))


def _effect(name: str) -> str:
    return "its receivers don't start" if name.startswith("stream") else "its batches are BLOCKED"


def _parts(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, stream in found["streams"].items():
        yield f"stream {name!r}", stream["source"]
    for pipeline, one in found["pipelines"].items():
        for name, output in one.get("outputs", {}).items():
            yield f"output {name!r} of pipeline {pipeline!r}", output.get("sink")


def _variables(declaration: Any) -> set[str]:  # noqa: ANN401  JSON
    match declaration:
        case str():
            named = _REFERENCE.fullmatch(declaration)
            return set() if named is None else {named[1]}
        case dict():
            return set().union(*map(_variables, declaration.values()))
        case list() | tuple():
            return set().union(*map(_variables, declaration))
        case _:
            return set()
