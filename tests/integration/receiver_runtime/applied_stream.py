"""Run the receiver of one stream, as `forebay apply` would declare it, and send to it by HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from forebay.testing.receiver_processes import eventually
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect, create_engine
from tracker_store.receivers.receivers import placements

if TYPE_CHECKING:
    from pathlib import Path

    from forebay import Stream

BINARY = {"Content-Type": "application/octet-stream"}


def applied(database_url: str, root: Path, stream: Stream) -> ReceiverRig:
    """Return a rig of the stream's one receiver."""
    engine = create_engine(database_url, application_name="tests")
    with connect(engine) as connection:
        apply_stream(connection, name=stream.name, declaration=stream.declaration(), receivers=1)
        [placement] = placements(connection)
    rig = ReceiverRig(database_url, root, engine, placement.receiver_id)
    rig.assign(1)
    return rig


def url_of(rig: ReceiverRig, stream: str) -> str:
    """Return where a started receiver listens, once it does."""
    eventually(lambda: "listening on" in rig.state()[1], "listening")
    return f"http://{rig.state()[1].partition('listening on ')[2].split()[0]}/v1/{stream}"


def post(url: str, record: bytes) -> tuple[int, str]:
    """Return the status, and of a refusal its reason."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, record, BINARY), timeout=60) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, str(json.loads(error.read())["detail"])
