"""Serve Dagster's UI and GraphQL for `forebay up`, on loopback, behind the checks of `webserver_access`. A program.

    python -m orchestration.dagster_instance.dagster_webserver --port N --workspace FILE

It does what Dagster's own `dagster-webserver` does; that has no place for a middleware. FOREBAY_DAGSTER_TOKEN holds the
token: every account can read command lines. This module decides nothing about requests.
"""

from __future__ import annotations

import argparse
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn
from dagster import DagsterInstance
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._utils.interrupts import setup_interrupt_handlers
from dagster._utils.log import configure_loggers
from dagster_webserver.app import create_app_from_workspace_process_context
from dagster_webserver.version import __version__

from orchestration.dagster_instance.http_connections import BoundedProtocol
from orchestration.dagster_instance.webserver_access import WebserverAccess
from orchestration.declarations.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

HOST = "127.0.0.1"
# The defaults of dagster-webserver.
_STATEMENT_TIMEOUT_MS = 15_000
_POOL_RECYCLE_SECONDS = 3600
_POOL_MAX_OVERFLOW = 20
_LIVE_DATA_POLL_MS = 2000


def serve(listener: socket.socket, workspace: str, *, token: str | None) -> None:
    """Serve until SIGTERM or SIGINT, which becomes KeyboardInterrupt when all connections are closed."""
    with DagsterInstance.get() as instance:
        instance.optimize_for_webserver(_STATEMENT_TIMEOUT_MS, _POOL_RECYCLE_SECONDS, _POOL_MAX_OVERFLOW)
        with WorkspaceProcessContext(
            instance, version=__version__, workspace_load_target=WorkspaceFileTarget(paths=[workspace])
        ) as context:
            app = create_app_from_workspace_process_context(context, live_data_poll_rate=_LIVE_DATA_POLL_MS)
            port: int = listener.getsockname()[1]
            config = uvicorn.Config(
                WebserverAccess(app, token=token, port=port),
                # A link's address holds the token.
                access_log=False,
                http=BoundedProtocol,
                lifespan="off",
                log_level="warning",
                proxy_headers=False,
                server_header=False,
            )
            uvicorn.Server(config).run(sockets=[listener])


def main(arguments: Sequence[str]) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestration.dagster_instance.dagster_webserver", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--port", type=int, required=True, help="the port to listen on")
    parser.add_argument("--workspace", required=True, help="the workspace.yaml to serve")
    parsed = parser.parse_args(arguments)
    configure_loggers(log_level="INFO")
    setup_interrupt_handlers()
    try:
        with socket.create_server((HOST, parsed.port)) as listener:
            serve(listener, parsed.workspace, token=Settings().webserver_token)
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
