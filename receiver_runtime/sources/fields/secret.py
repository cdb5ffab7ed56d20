"""Refer to secrets: hold where a secret is stored, and read it when asked. Imports no other module of Forebay.

Only the reference is declared, stored in the driver log and shown. `resolve` reads the secret itself, in the process
that needs it, and keeps it nowhere. A literal is refused, and no message of this module contains one.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import core_schema

_ENV = "env:"
_FILE = "file:"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WAYS = 'write EnvVar("NAME"), "env:NAME" (an environment variable) or "file:/PATH" (a file that holds it)'


class SecretError(ValueError):
    """Correct the way in which the secret is given, or found: it can't be used. The message never holds the secret.

    One of `resolve` ends with the way out and the reference: people see the end of a long reason, not its middle.
    """


@dataclass(frozen=True, slots=True)
class Secret:
    """Refer to a secret: `env:NAME` or `file:/PATH`. It is compared, printed and stored as this text."""

    reference: str

    def __post_init__(self) -> None:
        """Refuse a literal, and a reference that no process could resolve."""
        if self.reference.startswith(_ENV):
            name = self.reference.removeprefix(_ENV)
            if not _NAME.fullmatch(name):
                raise SecretError(f'{self.reference!r} names no environment variable: write "env:NAME"')
        elif self.reference.startswith(_FILE):
            path = self.reference.removeprefix(_FILE)
            if not PurePath(path).is_absolute():
                raise SecretError(
                    f'{self.reference!r} is no whole path: write one from the root, as "file:/run/secrets/NAME", '
                    "because the process that reads it may run in another directory"
                )
        else:
            raise SecretError(f"a secret is given by reference, never by itself: {_WAYS}")

    @classmethod
    def of(cls, value: object) -> Secret:
        """Return `value` as a reference: it may be a Secret, an EnvVar (also Dagster's) or text. Raises SecretError."""
        if isinstance(value, Secret):
            return value
        name = getattr(value, "env_var_name", None)
        if isinstance(name, str):
            return cls(_ENV + name)
        if isinstance(value, str):
            return cls(value)
        raise SecretError(f"a secret is given by reference, not as a {type(value).__name__}: {_WAYS}")

    def resolve(self) -> str:
        """Read and return the secret. The newline at the end of a file is not part of it.

        Raises:
            SecretError: the secret is missing or empty; names the reference and the way out.
        """
        if self.reference.startswith(_ENV):
            name = self.reference.removeprefix(_ENV)
            found = os.environ.get(name, "")
            if not found:
                raise SecretError(
                    f"the environment variable {name} is not set in this process. Set it where `forebay agent` and "
                    f"Dagster's code server start, or where `forebay up` starts both, and start that again: {name}"
                )
            return found
        path = Path(self.reference.removeprefix(_FILE))
        try:
            found = path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise SecretError(
                f"{error.strerror}: on the host of the process that uses it, and readable for its account, put the "
                f"secret into {self.reference}"
            ) from None
        except UnicodeDecodeError:
            raise SecretError(f"no text in UTF-8: write the secret as text into {self.reference}") from None
        if not found:
            raise SecretError(f"a secret is empty: write it into {self.reference}")
        return found

    def __str__(self) -> str:
        return self.reference

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:  # noqa: ANN401
        """Return the schema of a field in a declaration: accepts any spelling, serialises as the reference.

        The model must set `hide_input_in_errors=True`, otherwise pydantic itself prints the value that was refused.
        """
        from pydantic_core import core_schema  # noqa: PLC0415  Spark's workers read a reference, and may lack pydantic

        return core_schema.no_info_plain_validator_function(cls.of, serialization=core_schema.to_string_ser_schema())


def EnvVar(name: str) -> Secret:  # noqa: N802  as Dagster's, which is taken too
    """Return a reference to the secret in an environment variable of the process that needs it."""
    return Secret(_ENV + name)
