"""Check what the instance of `forebay up` keeps from other accounts: the code server's socket and the token."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
import yaml
from pydantic import SecretStr

from forebay.cli.instance.dagster_home import code_server_socket, kept_token, webserver_token, write_dagster_home
from forebay.cli.instance.running_dagster import dagster_token
from orchestration.declarations.settings import Settings
from orchestration.tracker.http.listen_address import ListenAddressError, checked_token

if TYPE_CHECKING:
    from pathlib import Path


def test_the_code_server_has_a_socket_that_only_the_owner_reaches_and_no_port(tmp_path: Path) -> None:
    place = tmp_path / "code_server"
    place.mkdir(mode=0o755)
    with code_server_socket(tmp_path) as path:
        assert path.parent == place
        assert place.stat().st_mode & 0o777 == 0o700
        workspace = write_dagster_home(tmp_path, code_server=path)
    [location] = yaml.safe_load(workspace.read_text(encoding="utf-8"))["load_from"]
    assert location["grpc_server"] == {"socket": str(path), "location_name": "forebay"}


def test_a_home_with_a_long_path_has_its_socket_elsewhere(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30)
    with code_server_socket(home) as path:
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert len(os.fsencode(path)) <= 103
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    assert not path.parent.exists()


def test_the_token_is_kept_for_the_owner_or_named_or_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_DAGSTER_TOKEN", raising=False)
    token = webserver_token(Settings(), tmp_path)
    assert token is not None
    assert len(token) >= 32
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert webserver_token(Settings(), tmp_path) == kept_token(tmp_path) == token
    assert [each.name for each in tmp_path.iterdir()] == ["token"]
    assert webserver_token(Settings(dagster_token=SecretStr("mine")), tmp_path) == "mine"
    assert webserver_token(Settings(dagster_token=SecretStr("off")), tmp_path) is None


def test_commands_of_this_home_have_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_DAGSTER_TOKEN", raising=False)
    monkeypatch.delenv("FOREBAY_DAGSTER_URL", raising=False)
    assert dagster_token(Settings(home=tmp_path)) is None
    (tmp_path / "dagster").mkdir()
    token = webserver_token(Settings(), tmp_path / "dagster")
    assert dagster_token(Settings(home=tmp_path)) == token
    # The token of this home is not sent to a webserver that is not this home's.
    assert dagster_token(Settings(home=tmp_path, dagster_url="http://dagster.example")) is None
    named = Settings(home=tmp_path, dagster_url="http://dagster.example", dagster_token=SecretStr("mine"))
    assert dagster_token(named) == "mine"


def test_a_token_that_no_header_can_hold_is_refused_and_not_shown() -> None:
    with pytest.raises(ListenAddressError, match="FOREBAY_DAGSTER_TOKEN can't be sent") as refused:
        checked_token("FOREBAY_DAGSTER_TOKEN", SecretStr("sécret"))
    assert "sécret" not in str(refused.value)


@pytest.mark.parametrize("own", [False, True])
def test_conditions_are_evaluated_where_a_project_has_assets_of_its_own(tmp_path: Path, own: bool) -> None:
    write_dagster_home(tmp_path, code_server=tmp_path / "socket", own_definitions=own)
    written = yaml.safe_load((tmp_path / "dagster.yaml").read_text(encoding="utf-8"))
    assert written["auto_materialize"] == {"enabled": own, "use_sensors": own}
    assert written["freshness"] == {"enabled": own}
