"""Declare a schema registry, which has the schemas of records by the ids in them. It asks none."""

from __future__ import annotations

from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from receiver_runtime.sources.fields.secret import Secret
from receiver_runtime.sources.fields.tcp import Tls


class Registry(BaseModel):
    """Name a schema registry with Confluent's API, as Confluent, Apicurio, Karapace and Redpanda have it.

    Its receivers ask it for each schema once. While it does not answer, records with a schema that they don't know yet
    wait.

    Args:
        url: as ``"https://registry:8081"``; of Apicurio with the path of that API,
            ``"http://registry:8080/apis/ccompat/v7"``.
        username: the user to log in as; and
        password: their password, by reference (``EnvVar("NAME")``, ``"env:NAME"``, ``"file:/PATH"``); or
        token: a bearer token, by reference.
        tls: for ``https`` with an authority of your own, or a certificate of the receiver's.
        timeout: how many seconds an answer may take.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str
    username: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    tls: Tls = Tls()
    timeout: float = Field(default=10.0, gt=0, le=300)

    def __init__(self, url: str | None = None, /, **fields: Any) -> None:  # noqa: ANN401  a model's fields
        """Take the URL. Raises ValueError."""
        super().__init__(**({} if url is None else {"url": url}), **fields)

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("the URL of a registry is like https://registry:8081, without a query")
        if "@" in parts.netloc:
            raise ValueError("give the user as username, and the password by reference as password, not in the URL")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if (self.username is None) is not (self.password is None):
            raise ValueError("a username and its password go together: give both, or neither")
        if self.username is not None and self.token is not None:
            raise ValueError("give a username with its password, or a token, not both")
        return self
