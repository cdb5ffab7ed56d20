"""Run a Python program of a test as another account of the machine, as an attacker without rights would."""

from __future__ import annotations

import os
import pwd
import sys

import pytest

from tests.support.commands.run_program import run_program

# The program gives up root itself, because another account may not be able to reach this interpreter. So modules are
# loaded before: `socket` needs the codec for names of hosts.
_PRELUDE = """
import encodings.idna, http.client, json, os, socket, sys
os.setgroups([])
os.setgid({gid})
os.setuid({uid})
"""


def as_nobody(program: str, *arguments: str) -> list[str]:
    """Return the command that runs a program as `nobody`; it may use http.client, json, os, socket and sys alone.

    Skip the test if this user may not change its account.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another account")
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        pytest.skip("this machine has no account nobody")
    text = _PRELUDE.format(uid=entry.pw_uid, gid=entry.pw_gid) + program
    return [sys.executable, "-I", "-c", text, *arguments]


def run_as_nobody(program: str, *arguments: str) -> str:
    """Run a program as `nobody`; return what it prints. Fails the test if the program fails."""
    done = run_program(as_nobody(program, *arguments), cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
