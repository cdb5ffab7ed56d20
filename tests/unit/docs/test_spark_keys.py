"""Check docs/reference/spark-keys.md: it has every key of Spark Streaming, and the settings and defaults that it names.

The keys are those in the class files of the installed pyspark, so that a new version of Spark with another key is
noticed, and those of the connectors, which pyspark does not contain.
"""

from __future__ import annotations

import inspect
import re
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from typer.core import TyperGroup
from typer.main import get_command

import forebay.sources
from forebay import Pipeline
from forebay.cli.main import app
from orchestration.declarations.pipeline_settings import PipelineSettings
from orchestration.declarations.settings import Settings
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration
from receiver_runtime.sources.receiver_settings import ReceiverSettings

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "spark-keys.md").read_text(encoding="utf-8")
PREFIX = "spark.streaming."
ROWS = re.findall(
    r"^\| `([\w.]+)` \| ([^|]+) \| (none|(?:\w+|`\w+`): `[^`]+`) \|(?: `([^`]+)`)? \| ?([^|]*)\|$", PAGE, re.MULTILINE
)

#: Of spark-streaming-kafka-0-10 (`kafka010/package.scala`), the former one for Kafka 0.8, and
#: spark-streaming-kinesis-asl (`KinesisReadConfigurations.scala`), in Spark 3.5 and 4.
CONNECTORS = frozenset(
    {
        "kafka.allowNonConsecutiveOffsets",
        "kafka.consumer.cache.enabled",
        "kafka.consumer.cache.initialCapacity",
        "kafka.consumer.cache.loadFactor",
        "kafka.consumer.cache.maxCapacity",
        "kafka.consumer.poll.ms",
        "kafka.maxRatePerPartition",
        "kafka.maxRetries",
        "kafka.minRatePerPartition",
        "kinesis.retry.maxAttempts",
        "kinesis.retry.waitTime",
    }
)
#: Keys of pyspark 4.3.0. The sources of Spark 3.5 have no other; `extraListeners` is new in 4.1, and
#: `raw.maxBlockSizeBytes` in 3.5.10.
PYSPARK = frozenset(
    {
        "backpressure.enabled",
        "backpressure.initialRate",
        "backpressure.pid.derived",
        "backpressure.pid.integral",
        "backpressure.pid.minRate",
        "backpressure.pid.proportional",
        "backpressure.rateEstimator",
        "blockInterval",
        "blockQueueSize",
        "checkpoint.directory",
        "clock",
        "concurrentJobs",
        "driver.writeAheadLog.allowBatching",
        "driver.writeAheadLog.batchingTimeout",
        "driver.writeAheadLog.class",
        "driver.writeAheadLog.closeFileAfterWrite",
        "driver.writeAheadLog.maxFailures",
        "driver.writeAheadLog.rollingIntervalSecs",
        "dynamicAllocation.enabled",
        "dynamicAllocation.maxExecutors",
        "dynamicAllocation.minExecutors",
        "dynamicAllocation.scalingDownRatio",
        "dynamicAllocation.scalingInterval",
        "dynamicAllocation.scalingUpRatio",
        "dynamicAllocation.testing",
        "extraListeners",
        "fileStream.minRememberDuration",
        "gracefulStopTimeout",
        "internal.batchTime",
        "internal.outputOpId",
        "manualClock.jump",
        "minRememberDuration",
        "raw.maxBlockSizeBytes",
        "receiver.blockStoreTimeout",
        "receiver.maxRate",
        "receiver.writeAheadLog.class",
        "receiver.writeAheadLog.closeFileAfterWrite",
        "receiver.writeAheadLog.enable",
        "receiver.writeAheadLog.maxFailures",
        "receiver.writeAheadLog.rollingIntervalSecs",
        "receiverRestartDelay",
        "sessionByKey.deltaChainThreshold",
        "stopGracefullyOnShutdown",
        "stopSparkContextByDefault",
        "ui.retainedBatches",
        "unpersist",
    }
)


def test_every_key_has_one_row() -> None:
    assert sorted(key for key, *_ in ROWS) == sorted(PYSPARK | CONNECTORS)
    assert len(re.findall(r"^\| `[a-z]", PAGE, re.MULTILINE)) == len(ROWS), "a row is not of the form that is checked"


def test_the_list_is_that_of_the_installed_spark() -> None:
    found: set[str] = set()
    for jar in (Path(pyspark.__file__).parent / "jars").glob("spark-*.jar"):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.endswith(".class") and (jar.name.startswith("spark-streaming") or "/config/" in name):
                    keys = re.findall(rb"spark\.streaming\.([A-Za-z0-9.]+)", archive.read(name))
                    found.update(key.decode() for key in keys)
    assert found == PYSPARK


def field(model: type[BaseModel], name: str) -> FieldInfo:
    assert name in model.model_fields, f"{model.__name__} has no {name}"
    return model.model_fields[name]


def default_of(setting: str) -> Any:  # noqa: ANN401  of any setting
    where, name = re.fullmatch(r"`?(\w+)`?: `([^`]+)`", setting).groups()  # type: ignore[union-attr]
    if where == "command":
        command, option = re.fullmatch(r"forebay (\w+) (--\w+)", name).groups()  # type: ignore[union-attr]
        group = get_command(app)
        assert isinstance(group, TyperGroup)
        made = group.get_command(None, command)  # type: ignore[arg-type]
        assert made is not None
        [found] = [parameter for parameter in made.params if option in parameter.opts]
        return found.default
    if where == "environment":
        return field(Settings, name.removeprefix("FOREBAY_").lower()).default
    if where == "stream":
        return field(ReceiverSettings, name).default
    if where == "pipeline":
        own = inspect.signature(Pipeline.__init__).parameters
        return own[name].default if name in own else field(PipelineSettings, name).default
    return field(getattr(forebay.sources, where), name).default


@pytest.mark.parametrize(
    ("key", "setting", "default"), [(key, setting, default) for key, _, setting, default, _ in ROWS]
)
def test_each_setting_exists_and_has_the_default_that_the_page_says(key: str, setting: str, default: str) -> None:
    if setting == "none":
        assert not default
        return
    found = default_of(setting)
    if isinstance(found, timedelta):
        found = found.total_seconds()
    if str(found) == default:
        return
    # A duration or a size is kept as a number.
    parse = parse_bytes if default.endswith("B") else parse_duration
    assert parse(default) == (parse_duration(found) if isinstance(found, str) else found), key


def test_each_key_without_a_setting_has_a_reason() -> None:
    assert [key for key, _, setting, _, reason in ROWS if setting == "none" and not reason.strip()] == []
