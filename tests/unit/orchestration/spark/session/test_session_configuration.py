"""Check that a pipeline's Spark configuration comes from one place: settings, then what build_definitions was given."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import Literal

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from orchestration.dagster_defs.build_definitions import build_definitions
from orchestration.declarations.modules import load_pipelines
from orchestration.declarations.pipeline import Pipeline
from orchestration.declarations.settings import Settings
from orchestration.spark.session import python_daemon, shipping
from orchestration.spark.session import session_configuration as session_configuration_module
from orchestration.spark.session.local_directory import LOCAL_DIRECTORY, SOCKET_DIRECTORY
from orchestration.spark.session.session import _directories
from orchestration.spark.session.session_configuration import (
    SOCKETS,
    session_configuration,
    shared_configuration,
    spark_defaults,
    spark_master,
)
from tests.support.machine.state_directory import state_directory

CLUSTERS = Path(__file__).parents[5] / "docs" / "how-to" / "clusters.md"


def settings(**values: object) -> Settings:
    return Settings.model_validate(values)


def test_only_a_local_session_is_bound_to_loopback() -> None:
    local = session_configuration(settings())
    assert (local["spark.master"], local["spark.driver.host"]) == ("local[*]", "127.0.0.1")
    cluster = session_configuration(settings(spark_master="spark://m:7077"))
    assert cluster["spark.master"] == "spark://m:7077"
    assert "spark.driver.host" not in cluster
    assert cluster["spark.sql.session.timeZone"] == "UTC"


def test_the_workers_of_a_local_session_have_the_code_in_force_also_if_they_have_another_python() -> None:
    local = session_configuration(settings(), {"spark.pyspark.python": "/another/bin/python"})
    assert local["spark.python.daemon.module"] == python_daemon.__name__
    # Workers on other machines may have no Forebay when their daemon starts.
    assert "spark.python.daemon.module" not in session_configuration(settings(spark_master="spark://m:7077"))


def test_what_the_user_wrote_into_sparks_own_file_is_not_overridden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.ui.enabled true\n"
        "spark.sql.session.timeZone\t Europe/Paris \r\n"
        " spark.driver.extraJavaOptions=-Xmx2g -Da=b\n"
        "spark.sql.warehouse.dir: file:/data/warehouse\n"
        "spark.driver.host elsewhere\n"
        "spark.authenticate false\n"
        "spark.authenticate.secret hidden\n",
        newline="",
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    found = spark_defaults()
    assert found["spark.sql.session.timeZone"] == "Europe/Paris"
    assert found["spark.driver.extraJavaOptions"] == "-Xmx2g -Da=b"
    made = session_configuration(settings())
    assert not made.keys() & {"spark.sql.session.timeZone", "spark.driver.extraJavaOptions"}
    assert made["spark.ui.enabled"] == "false"
    assert (made["spark.driver.host"], made["spark.authenticate"]) == ("127.0.0.1", "true")
    # Whatever a session is given is on a command line.
    assert "hidden" not in made.values()
    asked = {"spark.sql.session.timeZone": "UTC"}
    assert asked.items() <= session_configuration(settings(), asked).items()
    assert "spark.sql.warehouse.dir" not in _directories(tmp_path, made)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "empty"))
    named = {LOCAL_DIRECTORY: "/x", SOCKET_DIRECTORY: "/y"}
    assert _directories(tmp_path, named) == {"spark.sql.warehouse.dir": f"{tmp_path}/warehouse"}


def test_sparks_own_file_does_not_decide_where_sockets_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with state_directory() as home:
        (home / "spark-defaults.conf").write_text(f"{LOCAL_DIRECTORY} /x\n{SOCKET_DIRECTORY} /y\n")
        monkeypatch.setenv("SPARK_CONF_DIR", str(home))
        made = _directories(home, {})
        assert LOCAL_DIRECTORY not in made
        assert made[SOCKET_DIRECTORY].startswith(f"{home}/local/")
        assert SOCKET_DIRECTORY not in _directories(home, {SOCKET_DIRECTORY: "/z"})
        too_long = _directories(home / ("d" * 60), {})
        assert SOCKET_DIRECTORY not in too_long
        assert too_long[SOCKETS] == "false"


@pytest.mark.parametrize("fails", ["is_file", "read_text"])
def test_a_file_of_spark_that_can_not_be_read_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.ui.enabled true\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))

    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as refused, capture_logs() as said:
        refused.setattr(Path, fails, refuse)
        # It is asked for often, and depends on no such file.
        assert spark_master(settings()) == "local[*]"
        assert said == []
        assert session_configuration(settings())["spark.ui.enabled"] == "false"
    assert [entry["log_level"] for entry in said] == ["warning"]


def test_values_over_several_lines_are_not_ours_to_interpret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment goes on in no other line \\\n"
        "spark.a 1\\\\\n"
        "spark.ui.enabled \\\n"
        "  tr\\\r\n"
        "spark.sql.session.timeZone ue\n"
        "spark.b 2\n"
        "spark.c 3\\",
        newline="",
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert spark_defaults() == {"spark.a": "1\\\\", "spark.b": "2"}


def test_without_a_spark_no_file_of_the_working_directory_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.ui.enabled true\n")
    monkeypatch.chdir(tmp_path)
    for name in ("SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(session_configuration_module, "find_spec", lambda _: None)
    assert spark_defaults() == {}


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[2,3]"])
def test_a_local_session_asks_who_connects_to_its_ports(master: str) -> None:
    made = session_configuration(settings(spark_master=master))
    assert made["spark.authenticate"] == "true"
    # Spark draws the secret itself: a setting would be on the command line of the JVM, which everybody can read.
    assert not [key for key in made if "secret" in key]


@pytest.mark.parametrize("master", ["spark://m:7077", "yarn", "local-cluster[1,1,1024]"])
def test_a_cluster_keeps_its_own_authentication(master: str) -> None:
    assert "spark.authenticate" not in session_configuration(settings(spark_master=master))


def test_given_configuration_overrides_settings_and_settings_override_defaults() -> None:
    of_settings = settings(
        spark_master="spark://m:7077",
        spark_configuration={"spark.executor.memory": "1g", "spark.sql.shuffle.partitions": "9"},
    )
    made = session_configuration(of_settings, {"spark.executor.memory": "2g", "spark.master": "local[3]"})
    assert (made["spark.executor.memory"], made["spark.sql.shuffle.partitions"]) == ("2g", "9")
    assert (made["spark.master"], made["spark.driver.host"]) == ("local[3]", "127.0.0.1")


@pytest.mark.parametrize(
    "asked",
    [
        settings(spark_master="sc://h:1", spark_configuration={"spark.sql.shuffle.partitions": "3"}),
        settings(spark_configuration={"spark.remote": "sc://h:1", "spark.sql.shuffle.partitions": "3"}),
        settings(
            spark_configuration={"spark.remote": "sc://h:1", "spark.sql.shuffle.partitions": "3", "spark.master": "x"}
        ),
    ],
)
def test_a_connect_server_gets_only_the_requested_configuration(asked: Settings) -> None:
    assert session_configuration(asked) == {"spark.remote": "sc://h:1", "spark.sql.shuffle.partitions": "3"}


def test_settings_are_json_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in re.findall(
        r"^FOREBAY_SPARK_CONFIGURATION='(.*)'$", CLUSTERS.read_text(encoding="utf-8"), re.MULTILINE
    ):
        monkeypatch.setenv("FOREBAY_SPARK_CONFIGURATION", value)
        made = settings().spark_configuration
        assert made
        assert all(name.startswith("spark.") for name in made)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_definitions_of_the_page_carry_their_configuration(modules: Path) -> None:
    [code] = re.findall(
        r"^```python file=definitions\.py\n(.*?)^```$", CLUSTERS.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    (modules / "definitions.py").write_text(code, encoding="utf-8")
    [pipeline] = load_pipelines("definitions.py")
    wanted = {"spark.master": "spark://spark-master:7077", "spark.executor.memory": "4g"}
    assert pipeline.spark_configuration == wanted
    build_definitions(pipeline)
    assert pipeline.spark_configuration == wanted, "as the code location of `forebay up` builds them again"
    assert spark_master(settings(), pipeline.spark_configuration) == "spark://spark-master:7077"


def test_shared_session_combines_the_configuration_of_all_its_pipelines() -> None:
    first, second, third = (Pipeline(name, interval="10s") for name in ("first", "second", "third"))
    second.spark_configuration = {"spark.executor.memory": "4g", "spark.ui.enabled": "false"}
    third.spark_configuration = {"spark.executor.memory": "8g", "spark.x": "1"}
    assert shared_configuration([first, second]) == second.spark_configuration
    with capture_logs() as said:
        shared = shared_configuration([first, second, third])
    assert shared == {"spark.executor.memory": "4g", "spark.ui.enabled": "false", "spark.x": "1"}
    assert said[0]["keys"] == ["spark.executor.memory"]


def test_the_archive_contains_the_running_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = shipping.code_archive(tmp_path)
    assert shipping.code_archive(tmp_path) == archive
    with zipfile.ZipFile(archive) as read:
        names = set(read.namelist())
    assert {"orchestration/spark/reading/data_source.py", "receiver_runtime/block_store/frames/frame.py"} <= names
    assert {name.partition("/")[0] for name in names} == set(shipping.PACKAGES)
    root = tmp_path / "changed"
    for package in shipping.PACKAGES:
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").write_text("")
    monkeypatch.setattr(shipping, "_ROOT", root)
    assert shipping.code_archive(tmp_path) != archive


def test_archive_is_whole_when_two_processes_write_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check batch drivers of one home that start together: one begins and finishes while the other is still writing."""
    opened = zipfile.ZipFile
    others: list[Path] = []

    def meanwhile(file: Path, mode: Literal["w"], compression: int) -> zipfile.ZipFile:
        ours = opened(file, mode, compression)
        if not others:
            others.append(file)
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: 1)
                others.append(shipping.code_archive(tmp_path))
        return ours

    monkeypatch.setattr(zipfile, "ZipFile", meanwhile)
    archive = shipping.code_archive(tmp_path)
    assert others[1:] == [archive]
    with opened(archive) as read:
        assert read.testzip() is None
    assert list(tmp_path.iterdir()) == [archive]


def test_spark_encrypts_its_own_files_where_blocks_are_encrypted_unless_it_is_told_otherwise() -> None:
    name = "spark.io.encryption.enabled"
    assert name not in session_configuration(settings())
    assert session_configuration(settings(block_key="env:BLOCKS"))[name] == "true"
    told = settings(block_key="env:BLOCKS", spark_configuration={name: "false"})
    assert session_configuration(told)[name] == "false"
    # A Connect server's configuration is its own.
    assert name not in session_configuration(settings(block_key="env:BLOCKS", spark_master="sc://h:1"))


@pytest.mark.parametrize("prefix", ["spark.executorEnv", "spark.kubernetes.driverEnv", "spark.yarn.appMasterEnv"])
@pytest.mark.parametrize("keys", [{"block_key": "env:BLOCKS"}, {"block_keys_for_reading": "file:/x, env:BLOCKS"}])
def test_a_key_in_sparks_configuration_is_refused_because_spark_shows_it(keys: dict[str, str], prefix: str) -> None:
    shown = {f"{prefix}.BLOCKS": "hunter2hunter2"}
    expected = rf"{re.escape(prefix)}\.BLOCKS.*docs/how-to/encryption\.md"
    with pytest.raises(ValueError, match=expected) as raised:
        session_configuration(settings(**keys), shown)
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ValueError, match=expected):
        session_configuration(settings(**keys, spark_configuration=shown))
    assert session_configuration(settings(**keys), {f"{prefix}.OTHER": "x"})[f"{prefix}.OTHER"] == "x"


def test_a_key_in_sparks_own_file_is_refused_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.executorEnv.BLOCKS hunter2hunter2\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with pytest.raises(ValueError, match=r"spark\.executorEnv\.BLOCKS"):
        session_configuration(settings(block_key="env:BLOCKS"))
    # A Connect session does not have the file.
    assert session_configuration(settings(block_key="env:BLOCKS", spark_master="sc://h:1"))


def test_a_reference_to_a_secret_of_kubernetes_is_allowed_because_it_shows_only_the_secrets_name() -> None:
    reference = {"spark.kubernetes.executor.secretKeyRef.BLOCKS": "forebay-block-key:key"}
    assert reference.items() <= session_configuration(settings(block_key="env:BLOCKS"), reference).items()


def test_a_key_that_is_given_itself_is_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FOREBAY_BLOCK_KEY", "FOREBAY_BLOCK_KEYS_FOR_READING"):
        with monkeypatch.context() as environment:
            environment.setenv(name, "hunter2hunter2")
            with pytest.raises(ValidationError, match="a secret is given by reference") as raised:
                Settings()
            assert "hunter2" not in f"{raised.value!s} {raised.value!r}"


def test_all_keys_are_references_and_the_one_that_encrypts_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().block_key_references == ()
    monkeypatch.setenv("FOREBAY_BLOCK_KEYS_FOR_READING", "file:/run/secrets/before, env:LONG_BEFORE")
    assert [str(key) for key in Settings().block_key_references] == ["file:/run/secrets/before", "env:LONG_BEFORE"]
    monkeypatch.setenv("FOREBAY_BLOCK_KEY", "env:NOW")
    assert str(Settings().block_key_references[0]) == "env:NOW"
