"""Read docs/how-to/kubernetes-spark.md: the Spark settings that it documents, for the tests that check them."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "kubernetes-spark.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples" / "kubernetes"
TEMPLATE = EXAMPLES / "executor-pod.yaml"


def documented_configuration() -> dict[str, str]:
    """Return the page's FOREBAY_SPARK_CONFIGURATION."""
    [block] = re.findall(r"^```json\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    configuration: dict[str, str] = json.loads(block)
    return configuration
