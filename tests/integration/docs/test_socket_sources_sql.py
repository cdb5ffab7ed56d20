"""Check that the statements of the how-to on socket sources run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.driver_log.log import make_log

if TYPE_CHECKING:
    import sqlalchemy as sa

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "socket-sources.md"


def test_its_statements_run(connection: sa.Connection) -> None:
    [statement] = re.findall(r"^ *```sql\n(.*?)^ *```$", HOW_TO.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    make_log(connection)
    connection.exec_driver_sql(statement)
