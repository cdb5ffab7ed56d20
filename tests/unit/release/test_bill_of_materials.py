"""Validate the bill of materials with CycloneDX's own schema, and compare it with uv.lock and with the metadata."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import cyclonedx.schema
import jsonschema_rs
import pytest

from release.bill_of_materials import bill_of_materials
from release.bundled_programs import read_bundled_programs

ROOT = Path(__file__).parents[3]
SCHEMAS = Path(cyclonedx.schema.__file__).parent / "_res"


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(bill_of_materials(ROOT, "1.2.3", read_bundled_programs()))
    return content


def validator() -> jsonschema_rs.Draft7Validator:
    schemas = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in SCHEMAS.glob("*.schema.json")}
    registry = jsonschema_rs.Registry([(f"http://cyclonedx.org/schema/{name}", one) for name, one in schemas.items()])
    return jsonschema_rs.Draft7Validator(
        schemas["bom-1.5.SNAPSHOT.schema.json"], registry=registry, offline=True, validate_formats=True
    )


def test_cyclonedx_s_schema_takes_it(bill: dict[str, Any]) -> None:
    assert [error.message for error in validator().iter_errors(bill)] == []
    broken = {**bill, "components": [{**bill["components"][0], "type": "package"}]}
    assert not validator().is_valid(broken)


def test_each_requirement_of_the_project_is_in_it_and_what_only_tests_need_is_not(bill: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    scopes = {component["name"]: component["scope"] for component in bill["components"]}
    required = {name(requirement) for requirement in project["dependencies"]}
    of_extras = {name(one) for needed in project["optional-dependencies"].values() for one in needed}
    assert {scopes[one] for one in required} == {"required"}
    # Others need some of them too.
    needed = {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}
    names = {component["bom-ref"]: component["name"] for component in bill["components"]}
    by_others = {
        names[ref] for one, refs in needed.items() if scopes.get(names.get(one, "")) == "required" for ref in refs
    }
    assert {scopes[one] for one in of_extras - required - by_others} == {"optional"}
    assert scopes["py4j"] == "required", "what a requirement requires is in it too"
    assert not {"pytest", "mypy", "hypothesis", "cyclonedx-python-lib", "forebay"} & scopes.keys()


def test_references_lead_to_components_and_each_is_reached_from_the_project(bill: dict[str, Any]) -> None:
    needed = {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/forebay@1.2.3"
    root = bill["metadata"]["component"]["bom-ref"]
    assert needed.keys() == {root, *(component["bom-ref"] for component in bill["components"])}
    reached, left = set(), [root]
    while left:
        one = left.pop()
        if one not in reached:
            reached.add(one)
            left += needed[one]
    assert reached == needed.keys()


def test_the_bundled_programs_are_in_their_packages(bill: dict[str, Any]) -> None:
    bundled = {
        (component["name"], inner["name"], inner["version"])
        for component in bill["components"]
        for inner in component.get("components", ())
    }
    assert bundled == {(one.package, one.name, one.version) for one in read_bundled_programs()}


def test_the_same_lock_file_gives_the_same_bytes() -> None:
    first, second = (bill_of_materials(ROOT, "1.2.3", read_bundled_programs()) for _ in range(2))
    assert first == second


def name(requirement: str) -> str:
    for index, character in enumerate(requirement):
        if not (character.isalnum() or character in "-_."):
            return requirement[:index]
    return requirement
