"""A bare uvicorn application that reads the body and answers 200: the limit that `benchmarks.http` compares with.

Run as ``python -m benchmarks.http_bare``; prints its port.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def _read_and_answer(_: Scope, receive: Receive, send: Send) -> None:
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)  # noqa: T201  for the benchmark
    uvicorn.Server(uvicorn.Config(_read_and_answer, access_log=False, lifespan="off", log_config=None)).run([listener])
