"""Say how far back a version of an output's state is read: reading, clean-up and the writing of frames agree on it."""

from __future__ import annotations

#: How many versions are read at most for one state: of as many that follow each other, one has each bucket whole.
CHAIN_STEPS = 32
