"""Declare how well-known senders of web hooks sign their requests. Each is an ``Hmac`` with its fields filled in.

``secrets`` are given by reference, as ``EnvVar("NAME")``. While a secret is replaced, give the old one too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.sources.fields.hmac_signature import Hmac

if TYPE_CHECKING:
    from receiver_runtime.sources.fields.secret import Secret


class StandardWebhooks(Hmac):
    """Standard Webhooks, which Svix, Clerk, Resend, OpenAI and others send: the secret begins with ``whsec_``.

    The key of its retries: ``key_from="header:webhook-id"``.
    """

    def __init__(self, *secrets: Secret | str, brand: str = "webhook", tolerance: float | str = 300.0) -> None:
        """``brand`` is what the names of its headers begin with: ``"svix"`` for ``svix-id`` and the others."""
        super().__init__(
            secrets=secrets,
            header=f"{brand}-signature",
            encoding="base64",
            payload="{id}.{timestamp}.{body}",
            prefix="v1,",
            separator=" ",
            id_from=f"header:{brand}-id",
            timestamp_from=f"header:{brand}-timestamp",
            tolerance=tolerance,
            secret_encoding="base64",  # noqa: S106  no secret
            secret_prefix="whsec_",  # noqa: S106
        )


class GitHub(Hmac):
    """GitHub. It signs no time. The key of its retries: ``key_from="header:X-GitHub-Delivery"``."""

    def __init__(self, *secrets: Secret | str) -> None:
        super().__init__(secrets=secrets, header="X-Hub-Signature-256", prefix="sha256=")


class Meta(Hmac):
    """Meta: WhatsApp, Messenger, Instagram. It signs no time, and has no key of its retries."""

    def __init__(self, *secrets: Secret | str, verify_token: Secret | str) -> None:
        """``secrets`` are the app's. ``verify_token``, by reference, is what Meta shows when it asks."""
        super().__init__(
            secrets=secrets,
            header="X-Hub-Signature-256",
            prefix="sha256=",
            protocols="hub_challenge",
            challenge_secret=verify_token,
        )


class Stripe(Hmac):
    """Stripe. The key of its retries: ``key_from="body:/id"``."""

    def __init__(self, *secrets: Secret | str, tolerance: float | str = 300.0) -> None:
        super().__init__(
            secrets=secrets,
            header="Stripe-Signature",
            payload="{timestamp}.{body}",
            prefix="v1=",
            separator=",",
            timestamp_from="signature:t",
            tolerance=tolerance,
        )


class Slack(Hmac):
    """Slack, whose ``url_verification`` is answered. The key of its events' retries: ``key_from="body:/event_id"``."""

    def __init__(self, *secrets: Secret | str, tolerance: float | str = 300.0) -> None:
        super().__init__(
            secrets=secrets,
            header="X-Slack-Signature",
            protocols="slack",
            payload="v0:{timestamp}:{body}",
            prefix="v0=",
            timestamp_from="header:X-Slack-Request-Timestamp",
            tolerance=tolerance,
        )


class Shopify(Hmac):
    """Shopify. It signs no time. The key of its retries: ``key_from="header:X-Shopify-Webhook-Id"``."""

    def __init__(self, *secrets: Secret | str) -> None:
        super().__init__(secrets=secrets, header="X-Shopify-Hmac-Sha256", encoding="base64")


class Twilio(Hmac):
    """Twilio: forms, and JSON with its hash in the query. It signs no time.

    The key of its retries: ``key_from="header:I-Twilio-Idempotency-Token"``.
    """

    def __init__(self, *secrets: Secret | str, url: str, algorithm: str = "sha1") -> None:
        """``url`` is the URL that Twilio was given. ``algorithm`` is ``"sha256"`` if a rule of web hooks says so."""
        super().__init__(
            secrets=secrets,
            header="X-Twilio-Signature",
            algorithm=algorithm,
            encoding="base64",
            payload="{url}{form}",
            url=url,
            body_hash_parameter="bodySHA256",
        )
