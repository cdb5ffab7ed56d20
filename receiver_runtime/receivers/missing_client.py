"""What is said where a source's client is not installed. Imports none."""

from __future__ import annotations

from receiver_runtime.sources.base import SourceError


def missing_client(error: ModuleNotFoundError, kind: str, package: str, extra: str, *modules: str) -> SourceError:
    """The sentence, to be raised from ``error``. Raises ``error`` itself where it is not of the client's modules.

    Args:
        error: of the import.
        kind: who needs it.
        package: what is lacking, by the name that it is installed by; and
        modules: by those that it is imported by.
        extra: of ours, that brings it.
    """
    if (error.name or "").partition(".")[0] not in modules:
        raise error
    return SourceError(
        f"{kind}: the package {package} is not installed here: run `pip install 'forebay[{extra}]'` where the agent "
        "runs, in the environment of `forebay agent`"
    )
