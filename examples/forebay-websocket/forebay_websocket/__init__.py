"""A source for Forebay: the messages of a WebSocket, which it connects to."""

from forebay_websocket.declaration import WebSocket

__all__ = ["WebSocket"]
