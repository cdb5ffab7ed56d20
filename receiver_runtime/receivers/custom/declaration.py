"""Declare a receiver of the user's own: a class in the user's package, named by its path or its entry point.

The declaration holds only the class's name and options, so that it can be read where the class is not installed. The
class must be importable where the receiver runs.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from receiver_runtime.sources.source import Guarantee, Source, SourceError
from tracker_store.host.code_in_force import load_code_in_force

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A package lists its receivers in this entry point group: ``NAME = "package.module:Class"``.
ENTRY_POINT_GROUP = "forebay.receivers"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class CustomSource(Source):
    """Reads with a ``Receiver`` class of your own; see ``docs/how-to/custom-receiver.md``.

    Args:
        receiver: the class itself, ``"package.module:Class"``, or the name of an entry point of the group
            ``forebay.receivers``.
        options: keyword arguments for the class. They are stored as JSON: put no secret here.
    """

    #: The class declares its columns, and each start of its receivers registers them (``forebay.stream_schemas``).
    columns: ClassVar[tuple[tuple[str, str], ...]] = ()
    #: So does it with its record (``Receiver.record_column``).
    record_column: ClassVar[str] = ""
    #: For a class that sets no ``source_rule``.
    guarantee: ClassVar[Guarantee] = Guarantee.AT_MOST_ONCE

    kind: Literal["custom"] = "custom"
    receiver: str
    options: dict[str, JsonValue] = Field(default_factory=dict)

    if TYPE_CHECKING:

        def __init__(self, *, receiver: str | type, options: Mapping[str, Any] = ...) -> None:
            """Declare for type checkers that the class itself is accepted too; it is replaced by its path."""

    @property
    def address(self) -> str:
        """Return the receiver's name."""
        return self.receiver

    @property
    def is_bound_to_host(self) -> bool:
        """Return True, for a class that does not say (``Receiver.is_bound_to_host``): it may read a local file."""
        return True

    @model_validator(mode="before")
    @classmethod
    def _check_options(cls, values: Any) -> Any:  # noqa: ANN401  whatever was given
        """Check the options if the class itself is given, so that an error is raised where they are declared."""
        if isinstance(values, dict) and isinstance(values.get("receiver"), type):
            _check_fit(values["receiver"], values.get("options", {}))
        return values

    @field_validator("receiver", mode="before")
    @classmethod
    def _name_class(cls, receiver: object) -> object:
        if not isinstance(receiver, type):
            return receiver
        path = f"{receiver.__module__}:{receiver.__qualname__}"
        if receiver.__module__ == "__main__" or not _PATH.fullmatch(path):
            raise ValueError(
                f"the class {path} can't be imported by another process: define it at the top of a module of its own"
            )
        return path

    @field_validator("receiver")
    @classmethod
    def _check_name(cls, receiver: str) -> str:
        if not (_PATH.fullmatch(receiver) or _NAME.fullmatch(receiver)):
            raise ValueError(
                f"{receiver!r} names no receiver: give 'package.module:Class', or the name of an entry point of the "
                f"group {ENTRY_POINT_GROUP}"
            )
        return receiver

    def preferred_host(self) -> str | None:
        """Return the ``preferred_location`` of the class, which is made for that as on the host where it runs.

        Raises:
            SourceError: the class is not installed here, or can't be made.
        """
        receiver_class = self.load()
        try:
            host = receiver_class(**self.options).preferred_location
        except Exception as error:  # a user's code
            raise SourceError(
                f"receiver: {self.receiver!r} can't be asked here for its preferred_location: "
                f"{type(error).__name__}: {error}"
            ) from error
        return None if host is None else str(host)

    def make_receiver(self) -> object:
        """See ``Source``: the class is made with the options."""
        receiver_class = self.load_fitting()
        try:
            return receiver_class(**self.options)
        except Exception as error:  # a user's code
            raise SourceError(
                f"receiver: {self.receiver!r} can't be made with the options {self.options!r}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def load(self) -> type:
        """Import the class and return it. The working directory is importable, as it is for ``python -m``.

        Raises:
            SourceError: it is not installed here, or can't be imported; names the package and the way out.
        """
        path = self.receiver
        if ":" not in path:
            found = named_receivers().get(path)
            if found is None:
                known = ", ".join(sorted(named_receivers())) or "none"
                raise SourceError(
                    f"receiver: no package that is installed here has {path!r} in the entry point group "
                    f"{ENTRY_POINT_GROUP} (found: {known}): install that package where the agent runs, into the "
                    "environment of `forebay agent`, or name the class as 'package.module:Class'"
                )
            path = found.value
        return _import(path)

    def load_fitting(self) -> type:
        """Return the class, which takes the options. Raises SourceError, also as `load` does."""
        receiver_class = self.load()
        try:
            _check_fit(receiver_class, self.options)
        except ValueError as error:
            raise SourceError(f"receiver: {self.receiver!r}: {error}") from error
        return receiver_class


def _check_fit(receiver: type, options: Mapping[str, Any]) -> None:
    """Raise ValueError for options that the class does not take."""
    try:
        signature = inspect.signature(receiver)
    except ValueError:
        # A class made of one of Python's own may have none.
        return
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ValueError(f"options={options!r} do not fit {receiver.__name__}: {error}") from error


def named_receivers() -> dict[str, EntryPoint]:
    """Return the entry points of receivers in installed packages, by name, without importing them."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _import(path: str) -> type:
    module_name, _, class_name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        load_code_in_force()
        found: object = importlib.import_module(module_name.strip())
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        of_it = missing == module_name or module_name.startswith(f"{missing}.")
        package = missing.partition(".")[0]
        raise SourceError(
            f"receiver: {path!r} "
            + (f"is in the package {package!r}, which" if of_it else f"needs the package {package!r}, which")
            + " is not installed here: install it where the agent runs, into the environment of `forebay agent`"
        ) from error
    except (Exception, SystemExit) as error:  # whatever a user's module does when it is imported
        raise SourceError(
            f"receiver: importing {module_name!r} fails by {type(error).__name__}: {error}: correct the module"
        ) from error
    try:
        for name in class_name.strip().split("."):
            found = getattr(found, name)
    except AttributeError as error:
        raise SourceError(
            f"receiver: the module {module_name!r} has no {class_name!r}: correct the name, or install the version "
            "of its package that has it where the agent runs"
        ) from error
    if not isinstance(found, type):
        raise SourceError(f"receiver: {path!r} is no class: name a child of forebay.receiver.Receiver")
    return found
