"""Test `forebay config`: values, where they come from, masks, misspelled names, and values that can't be used."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from orchestration.declarations.settings import Settings
from receiver_runtime.sources.fields.units import duration_text, parse_duration

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("FOREBAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")


def forebay(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["config", *arguments])


def rows(*arguments: str) -> dict[str, dict[str, Any]]:
    done = forebay("--json", *arguments)
    assert done.exit_code == 0, done.output
    return {row["setting"]: row for row in json.loads(done.stdout)["settings"]}


def test_each_setting_has_its_value_origin_and_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_HISTORY_RETENTION", "72h")
    # Variables are read in any case.
    monkeypatch.setenv("forebay_rebalance", "0")
    found = rows()
    assert set(found) == {f"FOREBAY_{name.upper()}" for name in Settings.model_fields}
    retention = found["FOREBAY_HISTORY_RETENTION"]
    assert (retention["value"], retention["from"], retention["default"]) == ("3d", "environment", "14d")
    assert (found["FOREBAY_REBALANCE"]["value"], found["FOREBAY_REBALANCE"]["where"]) == ("false", "forebay_rebalance")
    assert found["FOREBAY_REBALANCE_INTERVAL"] == {
        "setting": "FOREBAY_REBALANCE_INTERVAL",
        "value": "10s",
        "from": "default",
        "where": None,
        "default": "10s",
        "description": Settings.model_fields["rebalance_interval"].description,
    }
    assert found["FOREBAY_DATABASE_URL"]["value"] is None


def test_a_value_can_be_set_as_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Settings()
    for name, row in rows().items():
        if row["value"] is not None:
            monkeypatch.setenv(name, row["value"])
    assert Settings() == before


def test_no_secret_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://me:pl4nted@db/forebay")
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", "s3://AKIAPL:pl4nted@bucket/a,/srv/blocks")
    monkeypatch.setenv("FOREBAY_TRACKER_TOKEN", "pl4nted-token-of-the-tracker")
    monkeypatch.setenv("FOREBAY_DAGSTER_TOKEN", "pl4nted-token-of-dagster")
    monkeypatch.setenv("FOREBAY_BLOCK_KEY", "file:/run/secrets/key")
    configuration = {
        "spark.hadoop.fs.s3a.secret.key": "pl4nted",
        "spark.hadoop.fs.azure.account.key.me": "pl4nted",
        "spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword=pl4nted",
        "spark.jars.repositories": "https://me:pl4nted@maven/",
        "spark.executor.memory": "4g",
    }
    monkeypatch.setenv("FOREBAY_SPARK_CONFIGURATION", json.dumps(configuration))
    for done in (forebay(), forebay("--json")):
        assert done.exit_code == 0, done.output
        assert "pl4nted" not in done.output
        assert "AKIAPL" not in done.output
        assert "db/forebay" in done.output
        assert "***@bucket/a,/srv/blocks" in done.output
        assert "file:/run/secrets/key" in done.output
        assert "4g" in done.output


def test_the_token_that_up_has_made_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / "token").write_text("pl4nted", encoding="ascii")
    row = rows()["FOREBAY_DAGSTER_TOKEN"]
    assert (row["from"], row["where"], row["value"]) == ("file", str(tmp_path / "dagster" / "token"), "**********")


def test_the_module_of_the_project_comes_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project = tmp_path / "pyproject.toml"
    project.write_text('[tool.forebay]\nmodule = "shop"\n', encoding="utf-8")
    row = rows()["FOREBAY_MODULE"]
    assert (row["from"], row["where"], row["value"]) == ("file", str(project), "shop")
    monkeypatch.setenv("FOREBAY_MODULE", "other")
    assert rows()["FOREBAY_MODULE"]["value"] == "other"
    monkeypatch.delenv("FOREBAY_MODULE")
    project.write_text("[tool.forebay]\nmodul = 1\n", encoding="utf-8")
    done = forebay()
    assert done.exit_code == 1
    assert f"{project}: [tool.forebay] has no setting" in done.output


def test_a_misspelled_name_is_reported_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABSE_URL", "pl4nted")
    monkeypatch.setenv("FOREBAY_DEMO_PORT", "1")
    monkeypatch.setenv("FOREBAY_BATCH_DRIVERS", "1")
    monkeypatch.setenv("FOREBAY_DAGSTER_DATABASE_URL", "x")
    assert json.loads(forebay("--json").stdout)["unknown"] == [
        {"variable": "FOREBAY_DATABSE_URL", "meant": "FOREBAY_DATABASE_URL"}
    ]
    shown = forebay().output
    assert "FOREBAY_DATABSE_URL is in the environment and is no setting: is FOREBAY_DATABASE_URL meant?" in shown
    assert "pl4nted" not in shown


def test_one_setting_is_explained_and_an_unknown_one_refused() -> None:
    shown = forebay("history_retention").output
    assert shown.startswith("FOREBAY_HISTORY_RETENTION=14d  (default)\n  How long the driver log shows")
    assert max(map(len, shown.splitlines())) <= 80
    assert list(rows("FOREBAY_HOME")) == ["FOREBAY_HOME"]
    done = forebay("nope")
    assert done.exit_code == 2
    assert "FOREBAY_NOPE" in done.output


@pytest.mark.parametrize(
    ("variable", "value"),
    [("FOREBAY_HEARTBEAT_LIMIT_SECONDS", "pl4nted"), ("FOREBAY_SPARK_CONFIGURATION", "{pl4nted")],
)
def test_a_value_that_can_not_be_used_is_named(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    done = forebay()
    assert done.exit_code == 1
    assert done.output.startswith(variable)
    assert "pl4nted" not in done.output


@pytest.mark.parametrize("text", ["14d", "1h", "90m", "10s", "200ms", "0s"])
def test_a_duration_is_written_as_it_is_read(text: str) -> None:
    seconds = parse_duration(text)
    assert duration_text(seconds) == text
    assert duration_text(timedelta(seconds=seconds).total_seconds()) == text
