"""Check the page on ZeroMQ: what its sender sends arrives, and its columns are named."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from forebay import Stream
from forebay_contrib.zeromq.declaration import ZeroMQ
from receiver_runtime.process.receiver_registry import make_receiver
from tests.support.machine.held_ports import held_port
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import eventually

PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def declared(example: str) -> Stream:
    names: dict[str, object] = {}
    exec(example, names)
    [stream] = [value for value in names.values() if isinstance(value, Stream)]
    return stream


def test_what_its_sender_sends_arrives(tmp_path: Path) -> None:
    [sender] = blocks("python sender")
    with held_port() as port:
        source = declared(blocks("python")[0].replace("5556", str(port))).source
        with rig(tmp_path, make_receiver(source)) as made:
            sending = subprocess.Popen([sys.executable, "-c", sender.replace("5556", str(port))])
            try:
                eventually(lambda: made.log.chain(1), "a block")
            finally:
                sending.kill()
                sending.wait(60)
            item = made.log.chain(1)[0].handle
            [batch] = made.store.read_batches(made.rows.paths[item.segment_id], item.offset, item.length, item.crc32c)
    row = batch.to_pylist()[0]
    assert (row["topic"], row["body"]) == (b"EUR/USD", b"1.08")
    assert len(row["further_frames"]) == 1


def test_its_table_names_every_column() -> None:
    section = PAGE.split("\n## Columns\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [name for name, _ in ZeroMQ.columns]
