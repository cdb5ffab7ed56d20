"""Check what holds for every kind of source, also for future ones: they are declared, made, shared and listed alike."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib.metadata import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pytest
from typer.testing import CliRunner

import forebay.cli.checks.extras
import forebay.sources
from forebay import DeclarationError, Stream
from forebay.cli.main import app
from receiver_runtime.block_path.records import schema_of
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.json_records import Json
from receiver_runtime.sources.source import Source, SourceRule
from receiver_runtime.sources.source_registry import parse_source, source_class, source_kinds
from tests.support.commands.run_program import run_program
from tests.unit.receiver_runtime.sources.least_declarations import LEAST

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

ROOT = Path(__file__).parents[4]
KINDS = {kind: source_class(kind) for kind in source_kinds()}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: The extras of all kinds, and the one that HTTP uses if it is installed.
EXTRAS = {source.needs_extra for source in KINDS.values() if source.needs_extra is not None} | {"otlp"}


def packages_of(extra: str) -> set[str]:
    """Return the packages that an extra installs, by their import names."""
    names = {re.split(r"[^\w.-]", asked)[0] for asked in PROJECT["project"]["optional-dependencies"][extra]}
    found = {file.parts[0] for name in names for file in files(name) or () if len(file.parts) > 1}
    return {name for name in found if name.isidentifier() and not name.startswith("_")}


CLIENTS = {name for extra in EXTRAS for name in packages_of(extra)}
OWN = sorted(set(KINDS) - {"custom"})
WITH_EXTRA = sorted(kind for kind, source in KINDS.items() if source.needs_extra is not None)

# Act as if none of them were installed: a module that is None in sys.modules can't be imported.
_BLOCKED = f"import sys\nfor name in {sorted(CLIENTS)!r}: sys.modules[name] = None\n"
_IMPORT_ALL = (
    _BLOCKED
    + """
import importlib, os, pkgutil
os.environ["FOREBAY_MODULE"] = "forebay.demo.pipeline"
for package in ("tracker_store", "receiver_runtime", "orchestration", "forebay", "forebay_contrib"):
    for found in pkgutil.walk_packages([package], package + "."):
        room, _, module = found.name.rpartition(".")
        is_kind = room.startswith(("receiver_runtime.receivers", "forebay_contrib."))
        if not is_kind or module.endswith(("declaration", "protocol", "sink")):
            if module != "__main__":
                importlib.import_module(found.name)
sources = sys.modules["forebay.sources"]
print(*(getattr(sources, name).__name__ for name in dir(sources)))
"""
)
_MAKE = (
    _BLOCKED
    + """
import json
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source
said = {}
for kind, fields in json.loads(sys.argv[1]).items():
    try:
        make_receiver(parse_source({"kind": kind, **fields}))
        said[kind] = None
    except SourceError as error:
        said[kind] = str(error)
print(json.dumps(said))
"""
)


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program([sys.executable, "-c", program, *arguments], cwd=ROOT)


def test_each_registered_kind_is_in_these_tests_and_everywhere_else() -> None:
    assert set(LEAST) == set(KINDS)
    assert {"confluent_kafka", "opentelemetry", "paho", "pika", "zmq"} <= CLIENTS
    [ours] = [asked for asked in PROJECT["dependency-groups"]["dev"] if asked.startswith("forebay[")]
    assert set(re.findall(r"[\w-]+", ours)) >= EXTRAS
    assert set(dir(forebay.sources)) == {source.__name__ for source in KINDS.values()} | {"Multiline", "Tls"}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_says_what_a_typed_stream_parses_or_why_nothing(kind: str) -> None:
    source = parse_source({"kind": kind, **LEAST[kind]})
    own = {name for declared in type(source).__mro__ if declared is not Source for name in vars(declared)}
    said = own & {"record_column", "no_record"}
    assert len(said) == 1, f"set record_column in the declaration of {kind}, or no_record"
    records = Json("item STRING NOT NULL", raw=True)
    if not source.columns:
        # The receiver's class says both.
        assert Stream("s", source, records=records).records == records
    elif said == {"record_column"}:
        assert dict(source.columns)[source.record_column] in {"binary", "string"}
        assert Stream("s", source, records=records).records == records
        schema = TypedRows(records, arrow_schema(source.columns), source.record_column).schema
        assert schema.names[0] == "item"
        assert "_raw" in schema.names
        assert len(schema.names) == len(set(schema.names))
    else:
        with pytest.raises(DeclarationError, match=rf"records=: {kind} has no column to parse: .*Leave out records="):
            Stream("s", source, records=Json("item STRING"))


def test_the_page_on_typed_streams_says_what_is_parsed_of_each_kind() -> None:
    page = (ROOT / "docs/how-to/typed-streams.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:`(\w+)`|none: .*|what the class names .*) \|$", page, re.MULTILINE))
    assert rows == {kind: source.record_column for kind, source in KINDS.items()}


def test_a_kind_of_a_package_that_does_not_say_is_refused() -> None:
    class Silent(Source):
        columns: ClassVar[tuple[tuple[str, str], ...]] = (("value", "binary"),)
        kind: Literal["silent"] = "silent"

    with pytest.raises(DeclarationError, match="silent has no column to parse: its package names no record_column"):
        Stream("s", Silent(), records=Json("item STRING"))


def test_only_receivers_need_a_brokers_client() -> None:
    done = run(_IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    assert {source.__name__ for source in KINDS.values()} <= set(done.stdout.split())


def test_declarations_do_not_load_installed_clients() -> None:
    program = "import sys, forebay.sources as s; [getattr(s, name) for name in dir(s)]; print(*sys.modules)"
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & CLIENTS == set()


@pytest.fixture(scope="module")
def said_without_clients() -> dict[str, str | None]:
    """Return the error of making each kind's receiver without any client installed; None if there is none."""
    done = run(_MAKE, json.dumps({kind: dict(LEAST[kind]) for kind in OWN}))
    assert done.returncode == 0, done.stderr
    said: dict[str, str | None] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("kind", WITH_EXTRA)
def test_a_missing_extra_is_named_in_one_sentence(kind: str, said_without_clients: dict[str, str | None]) -> None:
    said = said_without_clients[kind]
    assert said is not None
    assert "\n" not in said
    assert said.startswith(f"{kind}: the package ")
    assert f"is not installed here: run `pip install 'forebay[{KINDS[kind].needs_extra}]'` where the agent runs" in said


@pytest.mark.parametrize("kind", sorted(set(OWN) - set(WITH_EXTRA)))
def test_a_kind_without_an_extra_is_made_without_clients(
    kind: str, said_without_clients: dict[str, str | None]
) -> None:
    assert said_without_clients[kind] is None


@pytest.mark.parametrize("kind", OWN)
def test_a_declaration_can_make_several_receivers(kind: str) -> None:
    source = parse_source({"kind": kind, **LEAST[kind]})
    first, second = make_receiver(source), make_receiver(source)
    assert first is not second
    assert first.record_schema.equals(second.record_schema)
    if KINDS[kind].columns:
        assert first.record_schema.equals(schema_of(KINDS[kind].columns))


@pytest.mark.parametrize(
    ("kind", "fields", "rule"),
    [
        ("kafka", {}, SourceRule.OFFSETS),
        ("kafka", {"guarantee": "at_most_once"}, SourceRule.NOT_SENT_AGAIN),
        ("mqtt", {}, SourceRule.SENT_AGAIN),
        ("mqtt", {"qos": 0}, SourceRule.NOT_SENT_AGAIN),
    ],
)
def test_a_declaration_has_the_rule_of_its_sender(kind: str, fields: Mapping[str, Any], rule: SourceRule) -> None:
    assert parse_source({"kind": kind, **LEAST[kind], **fields}).source_rule is rule


@pytest.mark.parametrize("kind", sorted(LEAST))
def test_several_receivers_or_one_per_host_can_be_declared(kind: str) -> None:
    source = parse_source({"kind": kind, **LEAST[kind]})
    for receivers in (1, 3, "per_host"):
        declared = Stream("s", source, receivers=receivers).declaration()
        assert declared["receivers"] == receivers
        assert parse_source(declared["source"]) == source


def test_the_command_lists_kinds_columns_guarantees_and_extras() -> None:
    answer = CliRunner().invoke(app, ["sources", "--json"])
    assert answer.exit_code == 0, answer.output
    listed = {found["kind"]: found for found in json.loads(answer.stdout)["sources"] if found["receiver"] is None}
    assert set(listed) == set(KINDS)
    protocols = ["cloudevents", "elasticsearch", "event_grid", "gelf", "hub_challenge", "loki", "opentelemetry"]
    protocols += ["prometheus", "slack", "sns", "splunk_hec"]
    assert listed["http"]["choices"] == {"protocols": protocols}
    for kind, source in KINDS.items():
        assert listed[kind]["columns"] == dict(source.columns)
        assert listed[kind]["extra"] == source.needs_extra
        assert listed[kind]["installed"] is True
        if kind != "custom":
            assert listed[kind]["guarantees"] == [guarantee.words for guarantee in source.guarantees()]


def test_the_command_says_which_clients_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forebay.cli.checks.extras, "_has", lambda package: package != "paho-mqtt")
    monkeypatch.setenv("COLUMNS", "250")
    lines = CliRunner().invoke(app, ["sources"]).stdout.splitlines()
    assert [line for line in lines if "mqtt: not installed" in line]
    assert [line for line in lines if "kafka: installed" in line]


def test_blocked_modules_can_not_be_imported() -> None:
    assert "ModuleNotFoundError" in run(_BLOCKED + "import paho.mqtt.client").stderr
