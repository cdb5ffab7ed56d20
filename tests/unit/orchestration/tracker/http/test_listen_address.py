"""Check where the tracker may listen, and the error when it may not."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from orchestration.declarations.settings import Settings
from orchestration.tracker.http.listen_address import ListenAddress, ListenAddressError, listen_address, url


def test_the_default_is_loopback_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_TRACKER_HTTP", raising=False)
    monkeypatch.delenv("FOREBAY_TRACKER_TOKEN", raising=False)
    settings = Settings()
    assert listen_address(settings.tracker_http, settings.tracker_token) == ListenAddress("127.0.0.1", 3070)


@pytest.mark.parametrize(
    ("value", "host", "port"),
    [("127.0.0.2:0", "127.0.0.2", 0), ("localhost:80", "localhost", 80), ("[::1]:65535", "::1", 65535)],
)
def test_loopback_needs_no_token(value: str, host: str, port: int) -> None:
    assert listen_address(value, None) == ListenAddress(host, port)


@pytest.mark.parametrize("value", ["0.0.0.0:3070", "[::]:3070", "10.0.0.1:3070", "tracker.example:3070"])
def test_other_addresses_need_a_token(value: str) -> None:
    with pytest.raises(ListenAddressError, match="set FOREBAY_TRACKER_TOKEN"):
        listen_address(value, None)
    address = listen_address(value, SecretStr("secret"))
    assert address is not None
    assert address.token == "secret"


@pytest.mark.parametrize("value", ["", "3070", "127.0.0.1", "127.0.0.1:", ":3070", "::1:3070", "h:70000", "http://h:1"])
def test_invalid_address_is_named(value: str) -> None:
    with pytest.raises(ListenAddressError, match="is no address: give HOST:PORT") as refused:
        listen_address(value, SecretStr("secret"))
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize("token", ["", " ", "two\nlines", " secret", "sécret"])
def test_a_token_invalid_in_a_header_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ListenAddressError, match="FOREBAY_TRACKER_TOKEN can't be sent") as refused:
        listen_address("127.0.0.1:0", SecretStr(token))
    assert token.strip() == "" or token not in str(refused.value)


@pytest.mark.parametrize("value", ["off", "OFF", " off "])
def test_off(value: str) -> None:
    assert listen_address(value, None) is None


def test_a_url_has_brackets_around_an_ipv6_address() -> None:
    assert (url("::1", 1), url("127.0.0.1", 2)) == ("http://[::1]:1", "http://127.0.0.1:2")
