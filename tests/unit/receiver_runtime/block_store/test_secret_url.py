"""Check that no form of a URL lets its secrets out, and that everything else in it stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.block_store.secret_url import SecretUrl

_KEY, _SECRET = "AKIAPLANTED", "pl4nted/S3cret"


@pytest.mark.parametrize(
    ("url", "name", "shown"),
    [
        ("/data/blocks", "/data/blocks", "/data/blocks"),
        ("/data/a:b/c@d?password=x", "/data/a:b/c@d?password=x", "/data/a:b/c@d?password=x"),
        ("s3://bucket/a@b", "s3://bucket/a@b", "s3://bucket/a@b"),
        ("s3://K:S%2Fx@bucket/a?region=x", "s3://bucket/a", "s3://***@bucket/a?region=x"),
        (f"s3://{_KEY}:{_SECRET}@bucket/pre/fix", "s3://bucket/pre/fix", "s3://***@bucket/pre/fix"),
        ("s3://K:12/4@bucket/a", "s3://bucket/a", "s3://***@bucket/a"),
        ("s3://K:a?b#c@bucket/a", "s3://bucket/a", "s3://***@bucket/a"),
        ("S3://K:S@bucket/a", "s3://bucket/a", "s3://***@bucket/a"),
        ("s3://b/x?secret_key=abcd&region=y", "s3://b/x", "s3://b/x?secret_key=***&region=y"),
        ("postgresql://me:pw@h:5432/db", "postgresql://h:5432/db", "postgresql://me:***@h:5432/db"),
        ("postgresql://me@h/db", "postgresql://h/db", "postgresql://me@h/db"),
        ("postgresql://h:5432/db?user=a@b", "postgresql://h:5432/db", "postgresql://h:5432/db?user=a@b"),
        ("postgresql://h1:1,h2:2/db", "postgresql://h1:1,h2:2/db", "postgresql://h1:1,h2:2/db"),
        ("postgresql://[::1]:5432/db", "postgresql://[::1]:5432/db", "postgresql://[::1]:5432/db"),
        (
            "postgresql+psycopg2://h/db?password=pw&sslmode=require&passfile=/p",
            "postgresql+psycopg2://h/db",
            "postgresql+psycopg2://h/db?password=***&sslmode=require&passfile=/p",
        ),
        ("postgresql://me:p/w@h/db", "postgresql://h/db", "postgresql://me:***@h/db"),
        ("postgresql://me:12/4@h/db", "postgresql://h/db", "postgresql://me:***@h/db"),
        ("abfs://box@account/x", "abfs://account/x", "abfs://box@account/x"),
        ("file:///data/a@b", "file:///data/a@b", "file:///data/a@b"),
    ],
)
def test_name_and_shown_form(url: str, name: str, shown: str) -> None:
    found = SecretUrl(url)
    assert (found.name, found.shown) == (name, shown)
    assert found.reveal() == url
    assert found.has_secret == ("***" in shown)


_WORD = st.text("abcXYZ0129+/=", min_size=6, max_size=20).filter(lambda text: not text.isdigit())


@given(st.sampled_from(["s3", "gs", "postgresql", "amqp"]), _WORD, st.sampled_from(["", "/p", "/p?region=x"]))
def test_a_secret_is_in_no_printed_form(scheme: str, secret: str, end: str) -> None:
    url = SecretUrl(f"{scheme}://user:{secret}@host.example{end}")
    printed = [str(url), repr(url), f"{url}", url.name, url.shown, url.scrub(f"can't use {url.reveal()!r}")]
    assert not [text for text in printed if secret in text]
    assert url.name == f"{scheme}://host.example{end.partition('?')[0]}"
    assert url.has_unescaped_login == ("/" in secret)


def test_a_part_of_a_secret_in_a_librarys_error_is_hidden() -> None:
    url = SecretUrl("postgresql://me:s3cret:w0rd@h/db?sslpassword=m0re%20words")
    said = "invalid integer 's3cret' or 'w0rd' for 'm0re words', user me"
    assert url.scrub(said) == "invalid integer '***' or '***' for '***', user me"


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("postgresql://h/db#x", "'#'"),
        ("postgresql://u:p@h/db?a=b#", "'#'"),
        ("postgresql://h:99999/db", "port"),
        ("postgresql://h:1,g:0/db", "port"),
        ("http://[::1]:70000/", "port"),
        ("postgresql://u:p#w@h:5432,g:1/db?a=b", None),
        ("postgresql:///db?host=/run", None),
        ("http://[::1]:3000/x", None),
        ("/no/url#x", None),
    ],
)
def test_an_address_that_is_none_is_told_without_its_secrets(url: str, word: str | None) -> None:
    fault = SecretUrl(url).fault
    assert (fault is None) is (word is None)
    assert word is None or word in str(fault)
