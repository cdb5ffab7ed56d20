"""Test that memory which is freed is kept for what is made next."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Makes and frees 6 MiB in all, many times, in a thread; prints how many pages it got meanwhile.
_PROGRAM = """
import resource, sys, threading
import numpy as np
from receiver_runtime.process.kept_memory import keep_freed_memory

def make():
    return [np.ones(2**18) for _ in range(3)]

def run():
    make()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        make()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

print(keep_freed_memory() if sys.argv[1] == "kept" else None)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
_PAGES_OF_ONE_ROUND = 6 * 2**20 // 4096


def pages(how: str, **environment: str) -> tuple[str, int]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=clean | environment,
    )
    said, count = run.stdout.split()
    return said, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_what_is_freed_is_kept_for_what_is_made_next() -> None:
    said, count = pages("kept")
    assert said == "True"
    assert count < 2 * _PAGES_OF_ONE_ROUND
    assert pages("by default")[1] > 10 * _PAGES_OF_ONE_ROUND


def test_a_users_own_choice_stays() -> None:
    assert pages("kept", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"
