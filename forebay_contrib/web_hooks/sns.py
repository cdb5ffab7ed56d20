"""Declare that Amazon SNS sends: its messages are signed by a certificate of Amazon's, so there is no secret.

Only the declaration; ``sns_check`` checks requests.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from receiver_runtime.sources.fields.several import Several  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.units import parse_duration
from receiver_runtime.sources.fields.verification import Verification

#: A topic of SNS: its partition and its region.
TOPIC = re.compile(r"arn:(aws|aws-cn|aws-us-gov):sns:([a-z]{2}(?:-[a-z0-9]+)+):\d{12}:[A-Za-z0-9_-]{1,256}")


class Sns(Verification):
    """Amazon SNS. It signs the time, the topic and the message; subscriptions of ``topics`` are confirmed.

    The key of its retries: ``key_from="body:/MessageId"``.

    Args:
        topics: the ARNs of the topics that may send. Without them, anyone could subscribe this address to a topic of
            their own.
        tolerance: how far a message's time may be from the receiver's clock. SNS repeats a message for up to an hour,
            with the time of the first attempt.
    """

    check_class: ClassVar[str] = "forebay_contrib.web_hooks.sns_check:SnsCheck"

    kind: Literal["sns"] = "sns"
    protocols: Several = ("sns",)
    topics: Annotated[Several, Field(min_length=1)]
    tolerance: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 3900.0

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        for topic in topics:
            if not TOPIC.fullmatch(topic):
                raise ValueError(f"{topic!r} is no topic: give its ARN, as 'arn:aws:sns:us-east-1:123456789012:orders'")
        return topics
