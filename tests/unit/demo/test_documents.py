"""Check README and how-to: what they tell the reader to type does what they say."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestration.declarations.modules import load_pipelines
from tests.support.commands.run_program import run_program
from tests.support.machine.held_ports import held_port
from tests.support.polling import eventually

if TYPE_CHECKING:
    from orchestration.declarations.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[3]
HOW_TO = ROOT / "docs" / "how-to" / "first-pipeline.md"
TUTORIAL = ROOT / "docs" / "how-to" / "tutorial.md"
README = ROOT / "README.md"


def python_blocks(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def sh_blocks(document: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("document", [README, HOW_TO], ids=lambda path: path.name)
def test_forebay_finds_the_first_pipeline(document: Path, tmp_path: Path) -> None:
    path = tmp_path / f"pipeline_of_{document.stem.replace('-', '_').lower()}.py"
    path.write_text(python_blocks(document)[0], encoding="utf-8")
    found = load_pipelines(str(path))
    assert [pipeline.name for pipeline in found] == ["word_count"]
    assert without_directory(found[0]) == without_directory(load_pipelines(str(ROOT / "examples" / "word_count.py"))[0])


def without_directory(pipeline: Pipeline) -> dict[str, object]:
    declaration = pipeline.declaration()
    return {key: declaration[key] for key in ("interval_ms", "streams")} | {"outputs": list(declaration["outputs"])}


def test_the_readme_shows_the_how_tos_file() -> None:
    assert python_blocks(README)[0] == python_blocks(HOW_TO)[0]


def test_the_readme_says_what_becomes_of_a_change_as_the_how_to_does() -> None:
    """Check that it is said once, in three lines: tests/integration/cli/commands/test_changed_code.py holds it."""
    [rule] = re.findall(
        r"^While `forebay up` runs, it watches .+?\n\n", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert rule.count("\n") == 4
    assert rule in HOW_TO.read_text(encoding="utf-8")


def test_the_readmes_commands_are_the_tutorials() -> None:
    """Check this because a test follows the tutorial step by step, and none the README."""
    own = [
        line for block in sh_blocks(README) if "forebay new" in block or "curl" in block for line in block.splitlines()
    ]
    tutorial = [line for block in sh_blocks(TUTORIAL) for line in block.splitlines()]
    assert len(own) == 6
    assert [line for line in own if line not in tutorial] == []


def test_the_how_tos_server_sends_lines_to_one_receiver_after_another() -> None:
    [server] = [block for block in python_blocks(HOW_TO) if "create_server" in block]
    with (
        held_port() as port,
        subprocess.Popen([sys.executable, "-c", server.replace("9999", str(port))]) as running,
    ):
        try:
            # Also after `forebay up` was stopped, edited and started again.
            for _ in range(2):
                connected: list[socket.socket] = []
                eventually(partial(connect, port, connected), "the server of the how-to listens")
                with connected[0] as connection, connection.makefile("rb") as lines:
                    assert [next(lines), next(lines)] == [b"to be or not to be\n"] * 2
        finally:
            running.kill()


def connect(port: int, connected: list[socket.socket]) -> bool:
    try:
        connected.append(socket.create_connection(("127.0.0.1", port), 5))
    except ConnectionRefusedError:
        return False
    return True


def test_the_published_counts_can_be_read_as_the_how_to_says(tmp_path: Path) -> None:
    reader = next(block for block in python_blocks(HOW_TO) if "word_counts" in block and "dataset" in block)
    for number, count in ((1, 3), (2, 4)):
        folder = tmp_path / f"data/word_counts/date=2025-01-01/hour=00/batch_time=20250101T00000{number}Z"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"word": ["be", "or"], "count": [count, 1]}), folder / "part-0.parquet")
    attempt = tmp_path / "data/word_counts/_attempts/20250101T000009Z/attempt=1"
    attempt.mkdir(parents=True)
    pq.write_table(pa.table({"word": ["zombie"], "count": [1]}), attempt / "part-0.parquet")

    result = run_program([sys.executable, "-c", reader], cwd=tmp_path, check=True)
    assert result.stdout.splitlines() == ["be 7", "or 2"]
    [find] = re.findall(r"^find .*$", HOW_TO.read_text(encoding="utf-8"), re.MULTILINE)
    listed = subprocess.run(find, shell=True, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    assert sorted(listed.stdout.splitlines()) == sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.glob("data/word_counts/date=*/**/*.parquet")
    )


@pytest.mark.parametrize("document", [README, HOW_TO, ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_every_link_to_our_files_has_a_target(document: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text(encoding="utf-8"))
    missing = [link for link in links if not (document.parent / link).exists()]
    assert missing == []
