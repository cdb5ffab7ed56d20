"""The kinds of source. Importing this loads no broker's client."""

from __future__ import annotations

from receiver_runtime.sources import kinds
from receiver_runtime.sources.kinds import *  # noqa: F403  the one list of them
from receiver_runtime.sources.tcp import Tls

__all__ = ["Tls"]
__all__ += kinds.__all__
