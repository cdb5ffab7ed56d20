"""`python -m forebay.cli`: the same as the command `forebay`."""

from __future__ import annotations

from forebay.cli.entry import main

main()
