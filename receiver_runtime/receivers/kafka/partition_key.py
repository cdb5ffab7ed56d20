"""Name what the parts of the Kafka source know a partition by. It must never import a client."""

from __future__ import annotations

#: A partition's topic and number.
Key = tuple[str, int]
