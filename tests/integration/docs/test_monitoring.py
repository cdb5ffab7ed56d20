"""Test docs/how-to/monitoring.md and docs/reference/http-api.md: commands run, names and settings are the program's."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from orchestration.declarations.settings import Settings
from orchestration.tracker.http.http import PageContent, TrackerHttpServer, TrackerView
from orchestration.tracker.http.http_writes import ReplayDagster
from orchestration.tracker.http.listen_address import ListenAddress
from orchestration.tracker.http.streaming_api import STATUS
from tests.support.commands.run_program import run_program
from tests.support.dagster.replaying_webserver import replaying_dagster
from tests.support.driver_log.log import INTERVAL, NOON, make_log
from tests.support.polling import eventually
from tests.support.spark.class_file import read_class
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    import sqlalchemy as sa

DOCS = Path(__file__).parents[3] / "docs"
HOW_TO = (DOCS / "how-to" / "monitoring.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "http-api.md").read_text(encoding="utf-8")
_COMMANDS = re.compile(r"^```sh runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("commands", _COMMANDS.findall(HOW_TO) + _COMMANDS.findall(REFERENCE))
def test_commands(engine: sa.Engine, tmp_path: Path, commands: str) -> None:
    with connect(engine) as connection:
        log = make_log(connection)
        apply_pipeline(
            connection,
            name="words",
            declaration={"max_attempts": 1, "streams": ["lines"], "outputs": {"counts": {"inputs": ["lines"]}}},
            stream_ids=[log.stream_id],
            interval=INTERVAL,
        )
        log.add_at(log.receiver_ids[0], NOON)
        log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
        log.end_batch(NOON + INTERVAL, fails=True)
    view = TrackerView("host:1", lambda: 1, dict)
    address_file = tmp_path / Settings.model_fields["home"].default / "run" / "tracker.url"
    address = ListenAddress("127.0.0.1", 0, write_token="secret")
    with (
        replaying_dagster() as dagster,
        TrackerHttpServer(
            engine,
            view,
            address,
            address_file=address_file,
            content=PageContent(replay_dagster=ReplayDagster(dagster.url, dagster.url)),
        ),
    ):
        eventually(address_file.exists, "the file with the address")
        done = run_program(
            ["sh", "-euc", commands],
            env={"PATH": os.environ["PATH"], "FOREBAY_TRACKER_WRITE_TOKEN": "secret"},
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    if "/replay" in commands:
        assert '"desiredState": "paused"' in done.stdout
        assert '"desiredState": "running"' in done.stdout
        assert [params["selector"]["jobName"] for params in dagster.launched] == ["words_replay"]


def test_both_pages_have_commands() -> None:
    assert [len(_COMMANDS.findall(page)) for page in (HOW_TO, REFERENCE)] == [1, 2]


def test_the_scrape_configuration_sends_the_token() -> None:
    [scrape] = (yaml.safe_load(block) for block in _YAML.findall(HOW_TO))
    assert scrape["scrape_configs"][0]["authorization"]
    # The alert on a tracker that can't be scraped names this job.
    assert scrape["scrape_configs"][0]["job_name"] == "forebay"


def test_settings_and_defaults_are_the_programs() -> None:
    rows = dict(re.findall(r"^\| `FOREBAY_(TRACKER_\w+)` \| `?([^|`]+?)`? \|", HOW_TO, re.MULTILINE))
    fields = {name.upper(): field for name, field in Settings.model_fields.items() if name.startswith("tracker_")}
    assert rows == {name: str(field.default).replace("None", "none") for name, field in fields.items()}


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("Statistics", "StreamingStatistics"),
        ("Receivers", "ReceiverInfo"),
        ("Batches", "BatchInfo"),
        ("Output operations", "OutputOperationInfo"),
    ],
)
def test_o03_the_reference_explains_each_of_sparks_fields(heading: str, name: str) -> None:
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
    spark = read_class("spark-streaming", f"org.apache.spark.status.api.v1.streaming.{name}").fields
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == spark


def test_states_and_statuses_are_the_programs() -> None:
    rows = dict(re.findall(r"^\| ([A-Z]{6,})\b[^|]* \| ([A-Z]+)\b", REFERENCE, re.MULTILINE))
    assert rows == {state.value: status.value for state, status in STATUS.items()}


def test_every_path_is_in_the_table(engine: sa.Engine, tmp_path: Path) -> None:
    server = TrackerHttpServer(
        engine, TrackerView("host:1", lambda: 1, dict), ListenAddress("127.0.0.1", 0), address_file=tmp_path / "url"
    )
    paths = re.findall(r"^\| `(/[^`]*)` \|", REFERENCE, re.MULTILINE)
    assert [re.sub(r"\{\w+\}", "{}", path) for path in paths] == [
        re.sub(r"\{\w+\}", "{}", path) for path in server.paths
    ]
