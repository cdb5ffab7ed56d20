"""Serve a bare uvicorn application that reads the body and answers 200: the limit that other benchmarks compare with.

Run as ``python -m benchmarks.http_bare``; prints its port. It keeps idle connections as long as an ``Http`` source does
by default, and may have as many as the system allows.
"""

from __future__ import annotations

import resource
import socket
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_IDLE_SECONDS = 75


async def _read_and_answer(_: Scope, receive: Receive, send: Send) -> None:
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)  # noqa: T201  for the benchmark
    configuration = uvicorn.Config(
        _read_and_answer, access_log=False, lifespan="off", log_config=None, timeout_keep_alive=_IDLE_SECONDS
    )
    uvicorn.Server(configuration).run([listener])
