"""Describe Forebay's public Python API as Markdown, for the site: from signatures and docstrings.

Owns which modules are public, and how a docstring becomes Markdown. It imports these modules when it is called, and
reads no driver log. The text does not depend on the version of Python.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from orchestration.declarations.sink import Sink
from receiver_runtime.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

#: The modules that users import; everything in their `__all__` is public, and nothing else is.
MODULES = (
    "forebay",
    "forebay.sources",
    "forebay.records",
    "forebay.web_hooks",
    "forebay.source",
    "forebay.sink",
    "forebay.receiver",
    "forebay.parsing",
    "forebay.testing",
    "forebay.dagster",
    "forebay.components",
    "forebay.spark",
)
_PACKAGES = ("forebay", "forebay_contrib", "orchestration", "receiver_runtime", "tracker_store")
# Methods of a receiver that its process calls.
_INTERNAL = {"attach_supervisor", "make_run", "supervisor"}
_WIDTH = 100
_SECTION = re.compile(r"(Args|Raises|Returns|Yields):")
_ENTRY = re.compile(r" {4}(\*{0,2}[\w.]+): (.*)")
_CODE = re.compile(r"(`+)(.+?)\1")
_PAGE = re.compile(r"`docs/([\w/-]+\.md)`")


def python_api() -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Python API"
    yield ""
    yield "Everything that the modules named here export is public, and nothing else is. Written by"
    yield "`forebay reference python-api` from the signatures and docstrings."
    yield ""
    yield 'A parameter of the type `Seconds` takes a number of seconds or a text such as `"200ms"`, `"10s"` or `"2h"`;'
    yield 'one of the type `Size` or `Bytes` takes a number of bytes or a text such as `"64KiB"`.'
    for name in MODULES:
        module = import_module(name)
        yield ""
        yield f"## {name}"
        yield ""
        yield from _markdown(module.__doc__)
        for exported in public_names(module):
            yield from _described(module, exported)


def public_names(module: ModuleType) -> list[str]:
    """Return what a module exports, with what packages register there: a module that has such names lists them."""
    listed = vars(module).get("__dir__")
    return sorted(module.__all__ if listed is None else listed())


def _described(module: ModuleType, name: str) -> Iterator[str]:
    value = getattr(module, name)
    yield ""
    yield f"### {name}"
    yield ""
    if not inspect.isclass(value):
        if inspect.isroutine(value):
            yield from _code(_signature(name, _signature_as_written(value)))
            yield from _markdown(value.__doc__)
        else:
            # A constant, or an alias of types.
            yield f"`{name} = {value!r}`" if isinstance(value, str | int) else "An alias, for annotations."
        return
    if issubclass(value, BaseException):
        bases = " and ".join(f"`{base.__name__}`" for base in value.__bases__)
        yield f"An exception, a subclass of {bases}."
        yield ""
        yield from _markdown(value.__doc__)
    elif issubclass(value, Enum):
        yield from _markdown(value.__doc__)
        yield ""
        yield "Values: " + ", ".join(f"`{member.name}`" for member in value) + "."
    else:
        yield from _class(value, [found for each in module.__all__ if inspect.isclass(found := getattr(module, each))])


def _class(value: type, exported: Sequence[type]) -> Iterator[str]:
    signature = _constructor(value)
    if signature is not None:
        yield from _code(signature)
    yield from _markdown(value.__dict__.get("__doc__"))
    constructor = value.__dict__.get("__init__")
    if constructor is not None and constructor.__doc__ and not dataclasses.is_dataclass(value):
        yield ""
        yield from _markdown(constructor.__doc__)
    # What Forebay itself calls of a source or a sink is no interface for users, except for those who write a sink.
    if value is Sink or not issubclass(value, Source | Sink):
        base = next((base for base in value.__mro__[1:] if base in exported), None)
        if base is not None:
            yield ""
            yield f"It also has what [{base.__name__}](#{base.__name__.lower()}) has."
        yield from _members(value, base)


def _constructor(value: type) -> list[str] | None:
    """Return the call that makes an object; None if users make none."""
    if issubclass(value, BaseModel) and "__init__" not in value.__dict__:
        return _fields_call(value)
    if inspect.isabstract(value):
        return None
    if dataclasses.is_dataclass(value) or "__init__" in value.__dict__:
        return _signature(value.__name__, inspect.signature(value), returns=False)
    return None


def _fields_call(value: type[BaseModel]) -> list[str]:
    """Return the constructor's call of a model, with the fields of our own classes in their order."""
    annotations: dict[str, str] = {}
    for base in reversed(value.__mro__):
        if _is_ours(base):
            annotations |= {name: _plain(_text(found)) for name, found in inspect.get_annotations(base).items()}
    parts = []
    for name, field in value.model_fields.items():
        # `kind` says which kind of source a declaration is.
        if name not in annotations or name == "kind":
            continue
        value_of = field.get_default(call_default_factory=True, validated_data={})
        default = "" if value_of is PydanticUndefined else f" = {_default(value_of)}"
        parts.append(f"{name}: {annotations[name]}{default}")
    return _call(value.__name__, ["*", *parts] if parts else [])


def _members(value: type, described: type | None) -> Iterator[str]:
    """Yield methods and properties of our own classes, without those that a framework or Forebay itself calls.

    Of a base class that is `described`, only what the class itself changes.
    """
    foreign = {name for base in value.__mro__ if not _is_ours(base) for name in base.__dict__} | _INTERNAL
    seen = set() if described is None else {*dir(described)} - value.__dict__.keys()
    for base in value.__mro__:
        if not _is_ours(base):
            continue
        for name, member in base.__dict__.items():
            if name.startswith("_") or name in foreign or name in seen:
                continue
            seen.add(name)
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if isinstance(member, property) and member.fget is not None:
                yield from _member(f"`{name}`, a property", None, member.fget.__doc__)
            elif inspect.isfunction(function):
                signature = _signature(name, inspect.signature(function), bound=not isinstance(member, staticmethod))
                yield from _member(f"`{name}()`", signature, function.__doc__)


def _member(heading: str, signature: Sequence[str] | None, docstring: str | None) -> Iterator[str]:
    yield ""
    yield f"#### {heading}"
    yield ""
    if signature is not None:
        yield from _code(signature)
    yield from _markdown(docstring)


def _is_ours(base: type) -> bool:
    return base.__module__.partition(".")[0] in _PACKAGES


def _signature(name: str, signature: inspect.Signature, *, bound: bool = False, returns: bool = True) -> list[str]:
    parts: list[str] = []
    parameters = list(signature.parameters.values())
    starred = False
    for parameter in parameters[1:] if bound else parameters:
        # What begins with _ is filled in by Forebay.
        if parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else stars
        text = f"{stars}{parameter.name}"
        if parameter.annotation is not parameter.empty:
            text += f": {_plain(_text(parameter.annotation))}"
        if parameter.default is not parameter.empty:
            between = " = " if ":" in text else "="
            text += f"{between}{_default(parameter.default)}"
        parts.append(text)
    answer = None if signature.return_annotation is signature.empty else _plain(_text(signature.return_annotation))
    return _call(name, parts, answer if returns else None)


def _signature_as_written(function: Callable[..., object]) -> inspect.Signature:
    """Return a signature whose annotations are text, also where Python has evaluated them."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    written = {
        argument.arg: ast.unparse(argument.annotation)
        for argument in ast.walk(tree.args)
        if isinstance(argument, ast.arg) and argument.annotation is not None
    }
    signature = inspect.signature(function)
    return signature.replace(
        parameters=[
            each.replace(annotation=written.get(each.name, each.empty)) for each in signature.parameters.values()
        ],
        return_annotation=signature.empty if tree.returns is None else ast.unparse(tree.returns),
    )


def _call(name: str, parts: Sequence[str], answer: str | None = None) -> list[str]:
    arrow = "" if answer is None else f" -> {answer}"
    line = f"{name}({', '.join(parts)}){arrow}"
    if len(line) <= _WIDTH:
        return [line]
    return [f"{name}(", *(f"    {part}," for part in parts), f"){arrow}"]


def _text(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _plain(annotation: str) -> str:
    """Return an annotation without what checks a value: `Annotated[float, Field(gt=0)]` is float."""
    return ast.unparse(_WithoutChecks().visit(ast.parse(annotation, mode="eval")))


class _WithoutChecks(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "Annotated" and isinstance(node.slice, ast.Tuple):
            return node.slice.elts[0]
        return node


def _default(value: Any) -> str:  # noqa: ANN401  any default of any parameter
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    return "..." if inspect.isfunction(value) else repr(value)


def _code(lines: Sequence[str]) -> Iterator[str]:
    yield "```python"
    yield from lines
    yield "```"
    yield ""


def _markdown(docstring: str | None) -> Iterator[str]:
    """Yield a docstring as Markdown: the entries of a section such as `Args:` become a list."""
    in_section = False
    for line in inspect.cleandoc(docstring or "").splitlines():
        section = _SECTION.fullmatch(line)
        entry = _ENTRY.fullmatch(line) if in_section else None
        if section is not None:
            in_section = True
            yield f"{section[1]}:" if section[1] != "Args" else "Arguments:"
            yield ""
        elif entry is not None:
            yield f"- `{entry[1]}`: {_prose(entry[2])}"
        elif in_section and line.startswith("        "):
            yield f"  {_prose(line.strip())}"
        else:
            in_section = in_section and not line
            # Four spaces more than its paragraph: an example.
            yield line if line.startswith("    ") else _prose(line)


def _prose(line: str) -> str:
    """Return a line of text as Markdown: code between single backticks, pages of docs/ as links, no HTML."""
    found: list[str] = []
    end = 0
    for code in _CODE.finditer(line):
        found += [_escaped(line[end : code.start()]), f"`{code[2]}`"]
        end = code.end()
    text = "".join([*found, _escaped(line[end:])])
    return _PAGE.sub(r"[\1](../\1)", text)


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;")
