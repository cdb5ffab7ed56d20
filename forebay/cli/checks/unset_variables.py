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
    """Yield a sentence for each source and sink of `now` that is not in `before`, and lacks a variable here.

    Both have the form of ``compatibility.declared``. of_outputs: the variables that receivers are not given.
    """
    known = dict(_parts(before))
    for name, declaration in _parts(now):
        if known.get(name) == declaration:
            continue
        variables = _variables(declaration)
        if unset := sorted(one for one in variables if not os.environ.get(one)):
            yield (
                f"{name} refers to {', '.join(unset)}, which the environment of `forebay up` does not have: set it "
                "there, and start `forebay up` again."
            )
        elif name.startswith("stream") and (withheld := sorted(variables.intersection(of_outputs))):
            yield (
                f"{name} refers to {', '.join(withheld)}, which receivers do not have, because only outputs referred "
                "to it when `forebay up` started: start `forebay up` again."
            )


def _parts(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, stream in found["streams"].items():
        yield f"stream {name!r}", stream["source"]
    for pipeline, one in found["pipelines"].items():
        for name, output in one.get("outputs", {}).items():
            yield f"output {name!r} of pipeline {pipeline!r}", output["sink"]


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
