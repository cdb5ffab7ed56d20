"""Let the JVMs of a test run start from an archive of Spark's classes, which halves the processor time of each.

A running system makes such an archive for its FOREBAY_HOME, minutes after its start; the homes of tests are new, and
gone before. `make test` therefore makes one in the folder of the installed packages, which is removed with them.
Without it, or with one of another Java or Spark, the tests run as well, and longer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: The FOREBAY_HOME that the archive is made for.
HOME = Path(sys.prefix) / "forebay-tests"
#: What Spark starts each JVM of a driver with, before the options of its configuration.
VARIABLE = "SPARK_SUBMIT_OPTS"
# A JVM that can't use the archive (another Java, other jars) says so on its standard output.
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def use_class_archive() -> None:
    """Let every JVM that this process and its children start use the archive, if there is one. Loads no Spark."""
    found = next((HOME / "spark").glob("classes-*.jsa"), None)
    if found is not None and " " not in str(found):
        os.environ.setdefault(VARIABLE, f"-XX:SharedArchiveFile={found} {_SILENT}")


def main() -> None:
    """Make the archive, unless it is there; that takes half a minute."""
    from orchestration.declarations.settings import Settings  # noqa: PLC0415  a test run loads this module, and neither of these
    from orchestration.spark.session.class_archive import make  # noqa: PLC0415

    for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
        del os.environ[name]
    make(Settings(home=HOME))


if __name__ == "__main__":
    main()
