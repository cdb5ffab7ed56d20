"""Make a TLS context of a declaration: it reads the files and the passphrase that the declaration names.

It opens no connection.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NoReturn

from receiver_runtime.sources.fields.secret import SecretError

if TYPE_CHECKING:
    from receiver_runtime.sources.fields.tcp import Tls


def client_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context to connect with. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, tls.ca_file)
    if tls.certificate_file is not None:
        _load_certificate(context, tls.certificate_file, tls)
    return context


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context to listen with. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, tls.certificate_file or "", tls)
    if tls.ca_file is not None:
        _load_authorities(context, tls.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise OSError(f"ca_file {path} can't be used: {error}. Give a file of certificates, PEM.") from error


def _load_certificate(context: ssl.SSLContext, path: str, tls: Tls) -> None:
    key_path = tls.key_file
    try:
        password = _no_passphrase if tls.key_password is None else tls.key_password.resolve()
    except SecretError as error:
        raise OSError(f"key_password: {error}") from None
    try:
        context.load_cert_chain(path, key_path, password=password)
    except OSError as error:
        files = path if key_path is None else f"{path} with key_file {key_path}"
        raise OSError(
            f"certificate_file {files} can't be used: {error}. Give a certificate and its own key, PEM, readable "
            "by the receiver, and the key's passphrase, if it has one, as key_password."
        ) from error


def _no_passphrase() -> NoReturn:
    """Raise OSError. Without this callback OpenSSL would ask for the passphrase at the terminal, and wait."""
    raise OSError("the key has a passphrase, and there is no one to type it: give key_password")
