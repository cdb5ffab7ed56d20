"""Write the matrix of roles as Markdown: what each role may do with each table, view and function.

It is made from ``roles`` alone (`forebay db roles --matrix`). A test tries every cell. This module grants nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracker_store.install.programs import FUNCTIONS
from tracker_store.install.roles import ROLES
from tracker_store.schema.tables import metadata
from tracker_store.views import VIEWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    _Cell = Callable[[str, str], str]

_HEADER = """# Who may do what in the driver log

The rights of the four roles, by table, view and function. This page is what `forebay db roles --matrix` prints. A test
tries every cell with every role. What each role is for is in [schema.md](schema.md#roles).

The owner, who runs `forebay db upgrade`, may do everything. A login without a role sees nothing. Give each host a login
of its own, each a member of `forebay_receiver`, if a host that is taken over must not disturb the others: a login can
change only rows of its own processes.

## Which rows

`processes.login` records which login registered a process. It is the database that fills it in, and no role can write
it. The functions for receivers check it:

"""
_AFTER_ROWS = """
What a login may not change stays as it is: a function answers as if another process had been faster.
"""
_NOTHING = "no"
_HOLDER = "the login that registered the agent on which the receiver is placed, or the process that holds it"
#: What is changed, and who may change it.
_ROWS = (
    ("a row of `processes`: its end, its heartbeat", "the login that registered the process"),
    ("a row of `receivers`: its state, its assignment when its agent stops", _HOLDER),
    (
        "a claim of a receiver, a take-over in a hand-over",
        "the login that registered the agent on which the receiver is placed, or to which it is offered",
    ),
    (
        "a row of `log_segments`: opened, sealed",
        "the login that holds the receiver, as above; the path of a row never changes",
    ),
    (
        "blocks, positions and keys",
        "who has the receiver's newest epoch, which every login of the role can read: this is no secret between them",
    ),
    ("dead letters and events of receivers", "each login of the role, which can only add rows"),
)


def describe() -> str:
    """Return the whole page."""
    tables = sorted(table.name for table in metadata.sorted_tables)
    lines = [
        _HEADER.rstrip() + "\n",
        "| what | who may change it |",
        "|---|---|",
        *(f"| {what} | {who} |" for what, who in _ROWS),
        _AFTER_ROWS,
        *_section("Tables", "table", [*tables, "alembic_version"], _rights),
        *_section("Views", "view", sorted(VIEWS), _rights),
        *_section("Functions", "function", FUNCTIONS, _may_execute),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _section(title: str, kind: str, names: Iterable[str], cell: _Cell) -> Sequence[str]:
    return [
        f"## {title}",
        "",
        f"| {kind} | {' | '.join(f'`{role}`' for role in ROLES)} |",
        "|---" * (len(ROLES) + 1) + "|",
        *(f"| `{name}` | {' | '.join(cell(role, name) for role in ROLES)} |" for name in names),
        "",
    ]


def _rights(role: str, table: str) -> str:
    return ", ".join(ROLES[role].tables.get(table, ())) or _NOTHING


def _may_execute(role: str, function: str) -> str:
    return "EXECUTE" if function in ROLES[role].functions else _NOTHING
