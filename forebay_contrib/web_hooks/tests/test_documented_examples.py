"""Check each sender's own documented example, and that any change of it is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from forebay_contrib.web_hooks.declaration import GitHub, Meta, Shopify, Slack, StandardWebhooks, Stripe, Twilio
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.refusals import RefusedError
from receiver_runtime.receivers.http.requests.signatures import SignatureCheck
from receiver_runtime.sources.fields.hmac_signature import Hmac
from receiver_runtime.sources.source_registry import parse_source


@dataclass(frozen=True)
class Example:
    declared: Hmac
    secret: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    query: bytes = b""
    #: When it was signed, in seconds since 1970; 0 if it signs no time.
    at: int = 0

    def check(self, clock: float | None = None) -> None:
        now = self.at if clock is None else clock
        SignatureCheck(self.declared, clock=lambda: now).begin(self.headers, self.query).check(self.body)

    @property
    def signature(self) -> bytes:
        return dict(self.headers)[self.declared.header.lower().encode()]

    def with_header(self, name: bytes, value: bytes | None) -> Example:
        others = tuple(pair for pair in self.headers if pair[0] != name)
        return replace(self, headers=others if value is None else (*others, (name, value)))


EXAMPLES = {
    # github.com/standard-webhooks/standard-webhooks, the libraries' own vector
    "standard_webhooks": Example(
        StandardWebhooks("env:A_HOOK"),
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        (
            (b"webhook-id", b"msg_p5jXN8AQM9LWM0D4loKWxJek"),
            (b"webhook-timestamp", b"1614265330"),
            (b"webhook-signature", b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ),
        b'{"test": 2432232314}',
        at=1614265330,
    ),
    # docs.github.com, "Validating webhook deliveries"
    "github": Example(
        GitHub("env:A_HOOK"),
        "It's a Secret to Everybody",
        (
            (
                b"x-hub-signature-256",
                b"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
            ),
        ),
        b"Hello, World!",
    ),
    # api.slack.com, "Verifying requests from Slack"
    "slack": Example(
        Slack("env:A_HOOK"),
        "8f742231b10e8888abcd99yyyzzz85a5",
        (
            (b"x-slack-request-timestamp", b"1531420618"),
            (b"x-slack-signature", b"v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"),
        ),
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
        at=1531420618,
    ),
    # Not documented by an example: @shopify/shopify-api 13.1.0 (npm) takes this request as valid.
    "shopify": Example(
        Shopify("env:A_HOOK"),
        "hush",
        ((b"x-shopify-hmac-sha256", b"DteeRrtNXa5zrVNKL9SoRlc9n4xu3LGrjefXNyCtcyM="),),
        '{"id":820982911946154508,"email":"jon@example.com","note":"tea für zwei"}'.encode(),
    ),
    # Not documented by an example: signed by Meta's own whatsapp 0.0.5-Alpha (npm), `generateXHub256Sig`
    "meta": Example(
        Meta("env:A_HOOK", verify_token="env:A_TOKEN"),
        "an-app-secret",
        (
            (
                b"x-hub-signature-256",
                b"sha256=2b326d11e483ec1beca0de99c1d84ac4ff02fde3e22e1d3c7f47c7d06f9c9591",
            ),
        ),
        b'{"object":"whatsapp_business_account","entry":[{"id":"8856996819413533"}]}',
    ),
    # www.twilio.com/docs/usage/security, "Validating requests"
    "twilio": Example(
        Twilio("env:A_HOOK", url="https://mycompany.com/myapp.php?foo=1&bar=2"),
        "12345",
        (
            (b"content-type", b"application/x-www-form-urlencoded; charset=UTF-8"),
            (b"x-twilio-signature", b"0/KCTR6DLpKmkAf8muzZqo1nDgQ="),
        ),
        b"To=%2B18005551212&CallSid=CA1234567890ABCDE&Digits=1234&From=%2B12349013030&Caller=%2B12349013030",
        b"foo=1&bar=2",
    ),
}
every_example = pytest.mark.parametrize("name", EXAMPLES)


@pytest.fixture(autouse=True)
def _secret(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    if name is not None:
        monkeypatch.setenv("A_HOOK", EXAMPLES[name].secret)


@every_example
def test_the_documented_example_is_good(name: str) -> None:
    EXAMPLES[name].check()


def refused(example: Example, clock: float | None = None) -> str:
    with pytest.raises(RefusedError) as caught:
        example.check(clock)
    assert caught.value.refused.status == 401
    assert dict(caught.value.refused.headers)["www-authenticate"] == "Signature"
    assert example.secret not in caught.value.refused.detail
    return caught.value.refused.detail


@every_example
def test_each_flipped_bit_of_the_body_is_refused(name: str) -> None:
    example = EXAMPLES[name]
    for at in range(len(example.body)):
        flipped = bytearray(example.body)
        flipped[at] ^= 1
        refused(replace(example, body=bytes(flipped)))


@every_example
def test_each_changed_character_of_the_signature_is_refused(name: str) -> None:
    example = EXAMPLES[name]
    header = example.declared.header.lower().encode()
    for at, octet in enumerate(example.signature):
        changed = bytearray(example.signature)
        changed[at] = ord("0") if octet != ord("0") else ord("1")
        refused(example.with_header(header, bytes(changed)))


@every_example
def test_a_missing_header_is_refused_by_its_name(name: str) -> None:
    example = EXAMPLES[name]
    for header, _ in example.headers:
        said = refused(example.with_header(header, None))
        assert header == b"content-type" or said.lower().startswith(header.decode())


@every_example
def test_another_secret_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_HOOK", "whsec_AAAA" if name == "standard_webhooks" else "another")
    refused(EXAMPLES[name])


@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if example.at])
def test_a_time_beyond_the_tolerance_is_refused(name: str) -> None:
    example = EXAMPLES[name]
    for seconds in (-300, 300):
        example.check(example.at + seconds)
    assert "301 s ago, tolerance is 300 s" in refused(example, example.at + 301)
    assert "301 s ahead" in refused(example, example.at - 301)


@every_example
def test_the_old_secret_counts_while_it_is_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANOTHER_HOOK", "whsec_AAAA" if name == "standard_webhooks" else "another")
    for secrets in (["env:ANOTHER_HOOK", "env:A_HOOK"], ["env:A_HOOK", "env:ANOTHER_HOOK"]):
        declared = Hmac.model_validate({**dict(EXAMPLES[name].declared), "secrets": secrets})
        replace(EXAMPLES[name], declared=declared).check()


def test_twilios_query_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_HOOK", EXAMPLES["twilio"].secret)
    for query in (b"foo=1&bar=3", b"", b"foo=1&bar=2&more"):
        refused(replace(EXAMPLES["twilio"], query=query))


def test_what_is_stored_is_a_plain_hmac_and_has_the_reference_alone() -> None:
    senders = [
        *(GitHub("env:A_HOOK"), Shopify("env:A_HOOK"), Slack("env:A_HOOK"), StandardWebhooks("env:A_HOOK")),
        *(Stripe("env:A_HOOK"), Twilio("env:A_HOOK", url="https://a"), Meta("env:A_HOOK", verify_token="env:A_TOKEN")),
    ]
    for sender in senders:
        source = Http(listen="127.0.0.1:0", verify=sender)
        assert type(source.verify) is Hmac
        assert dict(source.verify) == dict(sender)
        stored = source.model_dump(mode="json")
        assert stored["verify"]["secrets"] == ["env:A_HOOK"]
        assert parse_source(stored) == source
