"""The kinds of source. Importing this loads no broker's client."""

from __future__ import annotations

from receiver_runtime.sources.socket_text import SocketText

__all__ = ["SocketText"]
