"""Let a failure in Forebay's suite show the values that differ."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("forebay.testing.sinks")
