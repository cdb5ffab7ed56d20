"""Check docs/security.md against the program: sources that listen, what children do not get, links, and the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forebay.cli.instance import withheld
from forebay.cli.instance.dagster_home import DATABASE_VARIABLE
from orchestration.declarations.settings import Settings
from receiver_runtime.sources.source_registry import source_class, source_kinds
from tests.support.machine.open_sockets import OpenSocket, Protocol
from tests.support.pages.listening import ALWAYS, PAGE, compare, listening_table

TEXT = PAGE.read_text(encoding="utf-8")
ROOT = PAGE.parents[1]
HOME = Path("/srv/forebay")
WEBSERVER = "python -m orchestration.dagster_instance.dagster_webserver --port 3000"


def test_each_kind_of_source_that_listens_is_in_the_table_and_has_no_default_address() -> None:
    listening = set()
    kinds = {kind.__name__: kind for kind in map(source_class, source_kinds())}
    for name, kind in kinds.items():
        field = kind.model_fields.get("listen")
        if field is not None:
            assert field.is_required() or field.default is None, name
            listening.add(name)
        if "bind" in kind.model_fields:
            assert kind.model_fields["bind"].default is False, name
            listening.add(name)
    declared = [row for row in listening_table() if row.when == "if declared"]
    named = {word for row in declared for address in row.addresses for word in address.split()}
    assert listening <= named
    assert {word for word in named if word in kinds} == listening


def test_a_port_that_is_not_in_the_table_is_found_and_so_is_a_wider_address() -> None:
    known = OpenSocket(Protocol.TCP, "127.0.0.1", WEBSERVER)
    wider = OpenSocket(Protocol.TCP, "0.0.0.0", WEBSERVER)
    every = OpenSocket(Protocol.TCP, "::", WEBSERVER)
    other = OpenSocket(Protocol.TCP, "127.0.0.1", "python -m dagster._daemon run")
    datagram = OpenSocket(Protocol.UDP, "127.0.0.1", WEBSERVER)
    outside = OpenSocket(Protocol.UNIX, "/tmp/.s.PGSQL.5432", "postgres")
    abstract = OpenSocket(Protocol.UNIX, "@socket", "python -m pyspark.daemon pyspark.worker")
    inside = OpenSocket(Protocol.UNIX, "/srv/forebay/postgres/.s.PGSQL.5432", "postgres")
    unknown, missing = compare(
        listening_table(), [known, wider, every, other, datagram, outside, abstract, inside], HOME
    )
    assert unknown == sorted([wider, every, other, datagram, outside, abstract])
    found = {"Dagster's pages and GraphQL", "the embedded Postgres"}
    assert set(missing) == {row.what for row in listening_table() if row.when in ALWAYS} - found


@pytest.mark.parametrize(
    ("process", "variables"),
    [
        ("receiver processes", withheld.from_receivers(Settings()) - {DATABASE_VARIABLE}),
        ("batch drivers, Dagster's code server", withheld.FROM_YOUR_CODE),
    ],
)
def test_what_children_do_not_get_is_what_the_program_leaves_out(process: str, variables: frozenset[str]) -> None:
    [cell] = re.findall(rf"^\| {process} \| (.*) \|$", TEXT, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", cell)) == variables


def test_links_lead_to_pages_and_headings() -> None:
    for page in (PAGE, ROOT / "SECURITY.md"):
        text = page.read_text(encoding="utf-8")
        links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text)
        assert links
        for target, anchor in links:
            path = (page.parent / target).resolve() if target else page
            assert path.exists(), target
            if anchor:
                headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in {slug(heading) for heading in headings}, (target, anchor)


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
