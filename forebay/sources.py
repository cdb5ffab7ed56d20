"""For your streams: the kinds of source. Importing this loads no broker's client."""

from __future__ import annotations

from receiver_runtime.sources import kinds
from receiver_runtime.sources.declarations.tcp import Tls
from receiver_runtime.sources.kinds import *  # noqa: F403  the one list of them

__all__ = ["Tls"]
__all__ += kinds.__all__
