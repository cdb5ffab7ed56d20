"""Make the error for a source whose client is not installed. Imports no client."""

from __future__ import annotations

from receiver_runtime.sources.source import SourceError


def missing_client(error: ModuleNotFoundError, kind: str, package: str, extra: str, *modules: str) -> SourceError:
    """Return the error to raise from ``error``. Raises ``error`` itself if another module than the client's is missing.

    Args:
        error: the import's error.
        kind: the kind of source that needs the client.
        package: the client's package, by the name that pip installs; and
        modules: by the names that Python imports.
        extra: the extra of ``forebay`` that installs it.
    """
    if (error.name or "").partition(".")[0] not in modules:
        raise error
    return SourceError(
        f"{kind}: the package {package} is not installed here: run `pip install 'forebay[{extra}]'` where the agent "
        "runs, in the environment of `forebay agent`"
    )
