"""Check secrets by reference: what is accepted, what is refused, and that no message contains a secret."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from forebay import EnvVar, Secret
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.fields.secret import SecretError
from receiver_runtime.sources.fields.tcp import Tls
from receiver_runtime.sources.fields.tls_context import server_context
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source

if TYPE_CHECKING:
    from pathlib import Path

LITERAL = "hunter2-hunter2"


class Declaration(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    password: Secret | None = None


class DagstersEnvVar(str):
    """Stands for `dagster.EnvVar`: a text that says that it is a variable's name."""

    __slots__ = ()

    @property
    def env_var_name(self) -> str:
        return str(self)


@pytest.mark.parametrize("value", [EnvVar("PASSWORD"), "env:PASSWORD", DagstersEnvVar("PASSWORD")])
def test_a_reference_is_stored_unresolved_and_resolved_when_used(
    value: str | Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", LITERAL)
    declared = Declaration.model_validate({"password": value})
    assert declared.model_dump(mode="json") == {"password": "env:PASSWORD"}
    assert Declaration.model_validate_json(declared.model_dump_json()) == declared
    assert declared.password is not None
    assert declared.password.resolve() == LITERAL
    for shown in (repr(declared), str(declared.password), repr(declared.password)):
        assert LITERAL not in shown


def test_a_file_is_read_when_used_without_its_last_newline(tmp_path: Path) -> None:
    file = tmp_path / "password"
    secret = Secret(f"file:{file}")
    with pytest.raises(SecretError, match=r"No such file.*put the secret into file:/"):
        secret.resolve()
    file.write_text("a b \n")
    assert secret.resolve() == "a b "
    file.write_text("\n")
    with pytest.raises(SecretError, match="is empty"):
        secret.resolve()


def test_a_literal_is_refused_with_the_fix_and_without_repeating_it() -> None:
    for value in (LITERAL, {LITERAL: 1}, b"hunter2-hunter2"):
        with pytest.raises(ValidationError) as raised:
            Declaration.model_validate({"password": value})
        assert "given by reference" in str(raised.value)
        assert '"env:NAME"' in str(raised.value)
        assert LITERAL not in str(raised.value)
        assert LITERAL not in repr(raised.value)


@pytest.mark.parametrize("reference", ["env:", "env:A B", "file:relative", "file:"])
def test_an_invalid_reference_is_refused(reference: str) -> None:
    with pytest.raises(SecretError, match=r"write"):
        Secret(reference)


def test_an_unset_variable_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(
        SecretError, match=r"variable NOT_SET is not set.*`forebay up` starts both, and start that again: NOT_SET$"
    ):
        EnvVar("NOT_SET").resolve()


def encrypted_certificate(folder: Path) -> Tls:
    """Make a self-signed certificate whose key has the passphrase LITERAL."""
    subject = ["-subj", "/CN=localhost", "-days", "1", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    command = ["openssl", "req", "-x509", *subject, *files, "-passout", f"pass:{LITERAL}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return Tls.model_validate(
        {
            "certificate_file": str(folder / "certificate.pem"),
            "key_file": str(folder / "key.pem"),
            "key_password": "env:KEY_PASSWORD",
        }
    )


def test_a_tls_keys_passphrase_is_resolved_in_the_receivers_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = encrypted_certificate(tmp_path)
    with pytest.raises(OSError, match=r"key_password: the environment variable KEY_PASSWORD is not set"):
        server_context(tls)
    monkeypatch.setenv("KEY_PASSWORD", "wrong-" + LITERAL)
    with pytest.raises(OSError, match=r"certificate_file .* can't be used") as raised:
        server_context(tls)
    assert LITERAL not in str(raised.value)
    with pytest.raises(OSError, match="give key_password"):
        server_context(tls.model_copy(update={"key_password": None}))
    monkeypatch.setenv("KEY_PASSWORD", LITERAL)
    assert server_context(tls).cert_store_stats() is not None


def test_a_literal_passphrase_is_refused_and_not_repeated() -> None:
    tls = {"certificate_file": "/c.pem", "key_password": LITERAL}
    with pytest.raises(ValidationError, match="given by reference") as refused:
        SocketText.model_validate({"listen": "0.0.0.0:9999", "tls": tls})
    assert LITERAL not in str(refused.value)
    with pytest.raises(SourceError, match="given by reference") as stored:
        parse_source({"kind": "socket_text", "listen": "0.0.0.0:9999", "tls": tls})
    assert LITERAL not in str(stored.value)
