"""Test that edits beside a running `forebay up` take effect with the next batch, and never within one."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from tests.support.machine.state_directory import state_directory
from tests.support.systems.numbered_source import NumberedSource
from tests.support.systems.running_system import RunningSystem, running_system

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.systems, pytest.mark.spark, pytest.mark.timeout(900)]

MODULE = '''\
"""A pipeline that says which versions of two modules its function and Spark's worker have."""

import os
import time
from pathlib import Path

from pyspark.sql.functions import lit, udf

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

VERSION = "1"
HOLD = Path(os.environ["NUMBERS_OUTPUT"]).parent / "hold"
numbers = Stream("numbers", SocketText(host="127.0.0.1", port=int(os.environ["NUMBERS_PORT"])))
pipeline = Pipeline("numbered", interval="2s", catch_up="merge")


def versions(_number):
    # Imported when it is needed, which may be after an edit.
    import late

    return f"{VERSION} {late.VERSION}"


@pipeline.output(inputs=[numbers], sink=ParquetSink(os.environ["NUMBERS_OUTPUT"]))
def seen(numbers):
    while HOLD.exists():
        time.sleep(0.02)
    number = numbers.selectExpr("CAST(value AS BIGINT) AS number")
    return number.withColumn("worker", udf(versions)("number")).withColumn("driver", lit(versions(0)))
'''


@pytest.fixture(scope="module")
def system() -> Iterator[RunningSystem]:
    with state_directory() as home, NumberedSource() as source:
        (home / "numbered.py").write_text(MODULE)
        (home / "late.py").write_text('VERSION = "1"\n')
        with running_system(home, source, str(home / "numbered.py")) as running:
            running.receive(100)
            yield running
            running.settle()
            running.check_every_number_came_out_once()


def edit(system: RunningSystem, before: str, after: str, *files: str) -> None:
    for file in files or ("numbered.py",):
        path = system.home / file
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))


def said(system: RunningSystem) -> list[str]:
    """Return what it said of changed code, without the times at which the lines begin."""
    lines = (system.home / "up.log").read_text().splitlines()
    return [line.partition(" ")[2] for line in lines if " changed" in line]


def last_said(system: RunningSystem) -> str:
    """Return the newest line of them; empty: there is none yet."""
    return (said(system) or [""])[-1]


def versions(system: RunningSystem) -> dict[str, set[str]]:
    """Return the versions that a batch's rows name, by its batch time; in order."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    if (system.home / "output").exists():
        table = ds.dataset(system.home / "output", partitioning="hive", format="parquet").to_table()
        for row in table.to_pylist():
            found[row["batch_time"]] |= {*row["worker"].split(), *row["driver"].split()}
    return dict(sorted(found.items()))


def newest(system: RunningSystem) -> set[str]:
    return next(reversed(versions(system).values()), set())


def test_an_edit_during_a_batch_takes_effect_in_the_next_one(system: RunningSystem) -> None:
    system.until("a batch of the first version", lambda: newest(system) == {"1"})
    (system.home / "hold").touch()
    system.until("a batch is held", lambda: any(row.state == "RUNNING" for row in system.batches()))
    edit(system, 'VERSION = "1"', 'VERSION = "2"', "numbered.py", "late.py")
    system.until("the change is in force", lambda: said(system))
    (system.home / "hold").unlink()
    system.until("a batch of the second version", lambda: newest(system) == {"2"})
    found = list(versions(system).values())
    assert found == sorted(found), "one version after the other"
    assert {len(each) for each in found} == {1}, "no batch has two versions"


def test_a_broken_module_leaves_the_last_good_version_in_force_also_for_a_new_driver(system: RunningSystem) -> None:
    before = newest(system)
    edit(system, "def seen(numbers):", "def seen(numbers:")
    system.until("it is refused", lambda: "can't be used: SyntaxError" in last_said(system))
    driver = system.until("a batch driver", lambda: system.process("batch-driver", "--agent-line"))
    system.kill(driver)
    done = len(versions(system))
    system.until("batches of the last good version", lambda: len(versions(system)) > done + 2)
    assert newest(system) == before
    edit(system, "def seen(numbers:", "def seen(numbers):")


def test_an_interval_changes_although_the_code_server_dies_while_it_loads(system: RunningSystem) -> None:
    edit(system, 'interval="2s"', 'interval="3s"')
    system.until("it is in force", lambda: "from the next batch on" in last_said(system))
    server = system.until("the next code server loads", lambda: system.process("dagster", "api", "grpc"))
    system.kill(server)

    def is_at_three_seconds() -> bool:
        ends = [row.batch_time.timestamp() for row in system.batches() if row.state == "COMPLETED"][:3]
        return len(ends) == 3 and all(end % 3 == 0 for end in ends)

    system.until("batches at multiples of 3 s", is_at_three_seconds)


def test_a_rename_waits_for_apply(system: RunningSystem) -> None:
    edit(system, "def seen", "def shown")
    system.until(
        "it waits", lambda: "waits for `forebay apply`: output 'seen' of numbered is gone" in last_said(system)
    )
    answer = CliRunner().invoke(app, ["status", "--json"], env={"FOREBAY_HOME": str(system.home)})
    shown = [problem["what"] for problem in json.loads(answer.stdout)["problems"]]
    assert last_said(system) in shown
    edit(system, "def shown", "def seen")
