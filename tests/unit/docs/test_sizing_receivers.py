"""Check that docs/how-to/sizing-receivers.md declares what is allowed, and names limits and messages as they are."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

from forebay import Stream
from receiver_runtime.agent import child_process, receiver_processes
from receiver_runtime.process import receiver_process
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.watching.descriptors import explain

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "how-to" / "sizing-receivers.md").read_text(encoding="utf-8")
PLAIN = " ".join(PAGE.split())


def test_its_declaration_is_accepted() -> None:
    [declaration] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(declaration, "page", "exec"), names)
    assert isinstance(names["readings"], Stream)
    assert isinstance(names["readings"].source, Http)
    assert names["readings"].source.max_connections == 10_000


def test_its_limits_are_those_of_the_code() -> None:
    default = Http(listen="127.0.0.1:0").max_connections
    assert f"takes {default:,} connections" in PLAIN
    assert f"have {child_process.STOP_GRACE_SECONDS:g} s to register" in PLAIN
    # The pool, and what it may open beyond it.
    assert receiver_process._STARTING_AT_ONCE == 4
    assert "starts four receivers at a time" in PLAIN


def test_its_messages_are_those_of_the_code() -> None:
    said = explain(OSError(errno.EMFILE, "Too many open files"))
    [shown] = re.findall(r"`(this process may have [^`]*)`", PLAIN)
    pattern = re.escape(shown).replace("4,096", "[0-9,]+")
    assert re.search(pattern, said)
    logged = re.findall(r"logs `([^`]*)`", PLAIN)
    assert logged
    code = "".join(
        Path(str(module.__file__)).read_text(encoding="utf-8") for module in (child_process, receiver_processes)
    )
    assert all(f'"{message}"' in code for message in logged)


def test_its_links_have_targets() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE)
    assert links
    assert [link for link in links if not (DOCS / "how-to" / link).is_file()] == []
