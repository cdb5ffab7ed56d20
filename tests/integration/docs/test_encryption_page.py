"""Run the commands of docs/how-to/encryption.md in their order, and compare its settings with the program's."""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

from orchestration.declarations.settings import Settings
from receiver_runtime.block_store.frames.encryption import KEY_SETTING, READING_SETTING
from tests.support.commands.forked_command import programs
from tests.support.commands.run_program import run_program
from tests.support.receivers.block_keys import key_id

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "encryption.md").read_text(encoding="utf-8")
COMMANDS = [
    textwrap.dedent(text) for text in re.findall(r"^ *```sh runnable\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
]


def test_the_commands_switch_encryption_on_and_rotate_the_key(
    engine: object, database_url: str, tmp_path: Path
) -> None:
    assert len(COMMANDS) == 6
    assert len(COMMANDS) == PAGE.count("```sh")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")},
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(tmp_path),
        **programs(),
    }
    done = run_program(["sh", "-euc", "\n".join(COMMANDS)], env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first = f"file:{tmp_path}/secrets/blocks-1"
    assert f"FOREBAY_BLOCK_KEY: {first} is key {key_id(first)}, which encrypts blocks" in done.stdout
    assert done.stdout.count("Every registered block is there and whole.") == 2
    for path in (tmp_path / "secrets").iterdir():
        assert path.stat().st_mode & 0o077 == 0


def test_the_settings_are_the_program_s() -> None:
    named = re.findall(r"^\| `(FOREBAY_BLOCK_KEY\w*)` \|", PAGE, re.MULTILINE)
    assert named == [KEY_SETTING, READING_SETTING]
    prefix = str(Settings.model_config["env_prefix"])
    assert [name.removeprefix(prefix).lower() for name in named] == [
        name for name in Settings.model_fields if name.startswith("block_key")
    ]
