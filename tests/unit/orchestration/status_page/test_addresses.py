"""Check that the settings hold addresses so that no secret of theirs is printed, and only what connects gets them."""

from __future__ import annotations

import pickle
import traceback

import pytest
from pydantic import ValidationError

from orchestration.declarations.settings import Settings
from orchestration.declarations.sink import TargetUnavailableError
from orchestration.sinks.postgres.postgres_staging import Address
from receiver_runtime.block_store.secret_url import SecretUrl

_SECRETS = ("pl4nted", "x7k9q", "AKIAPL")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://me:pl4nted@h/db?sslpassword=x7k9q")
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", "s3://AKIAPL:pl4nted%2Fx7k9q@bucket/a, /data")
    monkeypatch.setenv("FOREBAY_DAGSTER_URL", "http://me:pl4nted@127.0.0.1:3000")
    return Settings()


def test_no_form_of_the_settings_shows_a_secret(settings: Settings) -> None:
    printed = [repr(settings), str(settings), f"{settings.addresses}", str(settings.model_dump())]
    assert not [(secret, text) for text in printed for secret in _SECRETS if secret in text]
    assert "s3://***@bucket/a" in printed[0]


def test_what_connects_gets_the_whole_address(settings: Settings) -> None:
    assert settings.require_database_url() == "postgresql://me:pl4nted@h/db?sslpassword=x7k9q"
    assert settings.block_store_roots == "s3://AKIAPL:pl4nted%2Fx7k9q@bucket/a,/data"
    assert settings.dagster_url is not None
    assert settings.dagster_url.reveal() == "http://me:pl4nted@127.0.0.1:3000"
    other = settings.with_database_url("postgresql://elsewhere:pl4nted@h/db")
    assert other.require_database_url() == "postgresql://elsewhere:pl4nted@h/db"
    assert "pl4nted" not in repr(other)


def test_settings_are_given_as_text_too() -> None:
    given = Settings(database_url="postgresql://me@h/db", block_store="/a,/b")
    assert given.database_url == SecretUrl("postgresql://me@h/db")
    assert given.block_store_roots == "/a,/b"


def test_a_block_store_without_a_root_is_refused() -> None:
    with pytest.raises(ValidationError, match="it names no root"):
        Settings(block_store=" , ")


def test_a_target_that_can_not_be_reached_is_named_without_secrets() -> None:
    address = Address(SecretUrl("postgresql://me:pl4nted@127.0.0.1:1/none?sslpassword=x7k9q"), "AKIAPL", "forebay test")
    # Spark's tasks get it so.
    assert pickle.loads(pickle.dumps(address)) == address
    with pytest.raises(TargetUnavailableError) as raised:
        address.connect()
    printed = repr(address) + "".join(traceback.format_exception(raised.value))
    assert not [secret for secret in _SECRETS if secret in printed]
