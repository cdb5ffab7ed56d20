"""Tell where the embedded server's data directory keeps what services connect with, and how they reach its socket.

Light: the completion of a command line reads it, within a fraction of a second. It starts, makes and checks nothing.
"""

from __future__ import annotations

import json
import pwd
from typing import TYPE_CHECKING

from tracker_store.server.server_socket import SOCKET_PORT, client_directory
from tracker_store.server.services_login import SERVICES

if TYPE_CHECKING:
    from pathlib import Path

#: In the data directory: the passwords. Written before the directory gets its name: it marks a complete one.
OWN_FILE = "forebay.json"


def services_connection(data_directory: Path, database: str = "forebay") -> dict[str, str]:
    """Return libpq's parameters to connect as services, whether the server runs or not.

    Raises OSError and ValueError where there is no server, or its file is not ours to read.
    """
    stored = json.loads((data_directory / OWN_FILE).read_text(encoding="utf-8"))
    return {
        "host": str(client_directory(data_directory)),
        "port": str(SOCKET_PORT),
        "requirepeer": pwd.getpwuid(data_directory.stat().st_uid).pw_name,
        "user": SERVICES,
        "password": str(stored["services_password"]),
        "dbname": database,
    }
