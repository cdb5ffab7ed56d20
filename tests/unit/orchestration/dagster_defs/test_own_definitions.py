"""Test a user's own definitions beside a pipeline's: the module that a project names, and checks of outputs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from forebay import ParquetSink, Pipeline, Stream
from forebay.cli.checks.definitions_check import check_definitions
from forebay.cli.checks.findings import Health
from forebay.sources import SocketText
from orchestration.dagster_defs.build_definitions import build_definitions
from orchestration.dagster_defs.own_definitions import with_own_definitions
from orchestration.declarations.modules import PipelineModuleError
from orchestration.declarations.project_code import ProjectReader
from orchestration.declarations.project_file import project_definitions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def words() -> Pipeline:
    pipeline = Pipeline("words", interval="10s")
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline.output(inputs=[lines], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
    return pipeline


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.forebay]\nmodule = "shop"\ndefinitions = "own_of_shop"\n')
    (tmp_path / "shop.py").write_text("")
    return tmp_path


def test_batches_run_a_users_checks_of_their_outputs_and_not_ours(words: Pipeline) -> None:
    key = words.outputs["counts"].asset_key

    @dg.asset_check(asset=key)
    def has_words() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    ours = build_definitions(words)
    assert [node.name for node in ours.resolve_job_def("words_batch").nodes] == ["words__outputs"]
    job = dg.Definitions.merge(ours, dg.Definitions(asset_checks=[has_words])).resolve_job_def("words_batch")
    assert {node.name for node in job.nodes} == {"words__outputs", "words__counts_has_words"}
    # What a later attempt asks for, with the checks that it names: none.
    left = job.get_subset(asset_selection={key}, asset_check_selection=set())
    assert [node.name for node in left.nodes] == ["words__outputs"]


def test_a_projects_own_definitions_stand_beside_its_pipelines(words: Pipeline, project: Path) -> None:
    (project / "own_of_shop.py").write_text(
        "import dagster as dg\nimport helper_of_shop\n"
        "@dg.asset(deps=[dg.AssetKey(['words', 'counts'])])\ndef report() -> None: ...\n"
        "defs = dg.Definitions(assets=[report])\n"
    )
    (project / "helper_of_shop.py").write_text("")
    both = with_own_definitions(build_definitions(words), project_definitions())
    keys = {spec.key.to_user_string() for spec in both.resolve_all_asset_specs()}
    assert {"report", "words/counts"} <= keys
    assert ProjectReader("shop").read().modules.keys() == {"shop", "own_of_shop", "helper_of_shop"}


def test_a_module_that_has_the_pipelines_too_is_taken_as_it_is(words: Pipeline, project: Path) -> None:
    (project / "whole_of_shop.py").write_text("")
    module = importlib.import_module("whole_of_shop")

    @dg.asset
    def report() -> None: ...

    module.defs = dg.Definitions.merge(build_definitions(words), dg.Definitions(assets=[report]))  # type: ignore[attr-defined]
    assert with_own_definitions(build_definitions(words), "whole_of_shop") is module.defs
    other = Pipeline("other", interval="10s")
    other.output(inputs=[*words.outputs["counts"].streams], sink=ParquetSink("/other"), name="all")(lambda frame: frame)
    with pytest.raises(PipelineModuleError, match=r"has the jobs .*words_batch.* and not .*other_batch"):
        with_own_definitions(build_definitions(other, words), "whole_of_shop")


def test_a_project_that_names_none_has_its_pipelines_only(words: Pipeline, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.forebay]\nmodule = "shop"\n')
    ours = build_definitions(words)
    assert with_own_definitions(ours, project_definitions()) is ours
    assert ProjectReader("shop").read().modules.keys() == {"shop"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "can't be imported"),
        ("", "needs one dagster.Definitions at its top level, and has 0"),
        ("import dagster as dg\na = dg.Definitions()\nb = dg.Definitions()", "and has 2"),
    ],
    ids=["no module", "none", "two"],
)
def test_a_module_without_one_definitions_is_named(
    words: Pipeline, project: Path, text: str | None, said: str, request: pytest.FixtureRequest
) -> None:
    name = f"own_{request.node.callspec.id.replace(' ', '_')}"
    if text is not None:
        (project / f"{name}.py").write_text(text)
    with pytest.raises(PipelineModuleError, match=said) as raised:
        with_own_definitions(build_definitions(words), name)
    assert name in str(raised.value)


TWINS = """
import dagster as dg

@dg.asset
def a(): ...

@dg.asset(name="a")
def b(): ...

defs = dg.Definitions(assets=[a, b])
"""


@pytest.mark.parametrize(
    ("text", "health", "said"),
    [
        ("import dagster as dg\ndefs = dg.Definitions()\n", Health.OK, "own_of_shop"),
        ("defs = 1 / 0\n", Health.FAILED, "imported: ZeroDivisionError: division by zero (own_of_shop.py, line 1)"),
        ("raise SystemExit(3)\n", Health.FAILED, "imported: SystemExit: 3 (own_of_shop.py, line 1)"),
        ("import forebay\nforebay.Pipeline('w', interval='no')\n", Health.FAILED, "[tool.forebay]): pipeline 'w'"),
        ("", Health.FAILED, "needs one dagster.Definitions at its top level, and has 0"),
        (TWINS, Health.FAILED, "DagsterInvalidDefinitionError"),
    ],
)
def test_validate_loads_a_projects_own_definitions(
    words: Pipeline, project: Path, text: str, health: Health, said: str
) -> None:
    assert list(check_definitions("another", [words])) == []
    (project / "own_of_shop.py").write_text(text)
    [finding] = check_definitions("shop", [words])
    assert finding.health is health
    assert said in finding.found
    assert finding.way_out or health is Health.OK
