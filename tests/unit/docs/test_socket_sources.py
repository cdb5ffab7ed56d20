"""Check the pages on socket sources: the examples do what they say, and the tables match the fields."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestration.declarations.pipeline import Stream
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.sockets.raw_declaration import RawSocket
from receiver_runtime.receivers.sockets.tcp_source import TcpSource
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.fields.tcp import Tls
from tests.unit.receiver_runtime.rig import Rig, rig
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

DOCS = Path(__file__).resolve().parents[3] / "docs"
HOW_TO = (DOCS / "how-to" / "socket-sources.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "socket-sources.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)( sender)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| `(\w+)` \| `([^`]*)` \|", re.MULTILINE)


def blocks(language: str, *, sender: bool = False) -> list[str]:
    return [text for name, mark, text in _BLOCK.findall(HOW_TO) if name == language and bool(mark) == sender]


def stream_of(declaration: str, folder: Path) -> Stream:
    names: dict[str, object] = {"__file__": str(folder / "pipeline.py")}
    exec(compile(declaration, "how-to", "exec"), names)
    [stream] = [value for value in names.values() if isinstance(value, Stream)]
    return stream


def port_of(declaration: str) -> str:
    [port] = {str(found) for found in re.findall(r"\b999\d\b", declaration)}
    return port


@contextmanager
def listening(declaration: str, folder: Path) -> Iterator[tuple[Rig, str]]:
    """Run the receiver of the page, on a port that the system chose; yield it with that port."""
    source = stream_of(declaration.replace(port_of(declaration), "0"), folder).source
    with rig(folder, make_receiver(source)) as made:
        said = "listening on 127.0.0.1:"
        eventually(lambda: made.reporter.reasons and made.reporter.reasons[-1].startswith(said))
        yield made, made.reporter.reasons[-1].removeprefix(said)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, ["disk is 91 % full", "fan 2 has stopped"]),
        (1, [b"\x00\x01\xff", b"", b"any bytes\n"]),
        (2, ["order 7 failed\njava.io.IOException: reset\n\tat Orders.find(Orders.java:12)", "order 8 is done"]),
    ],
)
def test_each_sender_of_the_how_to_reaches_its_receiver(number: int, expected: list[object], tmp_path: Path) -> None:
    # Between the second and the third one is that of TLS.
    declaration, sender = blocks("python")[(1, 2, 4)[number]], blocks("python", sender=True)[number]
    with listening(declaration, tmp_path) as (made, port):
        sender = sender.replace(port_of(declaration), port)
        subprocess.run([sys.executable, "-c", sender], check=True, timeout=60)
        eventually(lambda: list[object](made.values()) == expected)


def test_the_receiver_connects_to_the_server_of_the_how_to(tmp_path: Path) -> None:
    declaration = blocks("python")[0]
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        port = str(server.getsockname()[1])
        source = stream_of(declaration.replace(port_of(declaration), port), tmp_path).source
        made = stack.enter_context(rig(tmp_path, make_receiver(source)))
        connection, _ = server.accept()
        with connection:
            connection.sendall("12 £\r\n13 £\r\n".encode("latin-1"))
            eventually(lambda: made.values() == ["12 £", "13 £"])


def test_the_tls_of_the_how_to(tmp_path: Path) -> None:
    certificate, sender = blocks("sh")
    declaration = blocks("python")[3]
    subprocess.run(["sh", "-euc", certificate], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    with listening(declaration, tmp_path) as (made, port):
        sender = sender.replace(port_of(declaration), port)
        done = subprocess.run(["sh", "-euc", sender], cwd=tmp_path, capture_output=True, check=False, timeout=60)
        eventually(lambda: made.values() == ["for your eyes only"], done.stderr.decode())


def test_all_examples_of_the_page_are_run_here() -> None:
    assert [len(blocks("python")), len(blocks("python", sender=True)), len(blocks("sh"))] == [5, 3, 2]


@pytest.mark.parametrize(
    ("heading", "model", "parent"),
    [
        ("# Socket sources", TcpSource, None),
        ("## `SocketText`", SocketText, TcpSource),
        ("## `RawSocket`", RawSocket, TcpSource),
        ("## `Tls`", Tls, None),
    ],
)
def test_the_tables_match_the_fields(heading: str, model: type[BaseModel], parent: type[BaseModel] | None) -> None:
    section = re.split(r"^#+ ", REFERENCE.partition(heading + "\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = {name: default.replace("\\n", "\n") for name, default in _ROW.findall(section)}
    inherited = {"kind", *(parent.model_fields if parent is not None else ())}
    fields = {name: field for name, field in model.model_fields.items() if name not in inherited}
    assert list(rows) == list(fields)
    assert rows == {
        name: f'"{field.default}"' if isinstance(field.default, str) else repr(field.default)
        for name, field in fields.items()
    }
