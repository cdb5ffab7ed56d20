"""`forebay new PROJECT`: make the directory of a user's own project, from the templates in forebay/project_template.

It writes into a directory that is empty or not there yet, and never over a file.
"""

from __future__ import annotations

import json
import keyword
import shlex
import sys
from enum import StrEnum
from importlib import resources
from importlib.machinery import PathFinder
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import CommandError, clear_errors
from forebay.shadowing import PACKAGES
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.pipeline import Pipeline

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

#: Template -> file of the project. "$module" stands for the name of the pipeline's module.
_FILES: Final = {
    "pipeline.py.txt": "$module.py",
    "test_pipeline.py.txt": "test_$module.py",
    "definitions.py.txt": "definitions.py",
    "pyproject.toml.txt": "pyproject.toml",
    "workspace.yaml.txt": "workspace.yaml",
    "dagster.yaml.txt": "dagster.yaml",
    "README.md.txt": "README.md",
    "gitignore.txt": ".gitignore",
}


class ProjectSource(StrEnum):
    """Name the source that a project begins with. The templates of its folder replace, or join, the others."""

    HTTP = "http"
    WEBHOOK = "webhook"
    KAFKA_AVRO = "kafka-avro"
    OTLP = "otlp"
    LOGS = "logs"


#: What a project is installed with, where its source needs an extra.
_REQUIREMENTS: Final = {ProjectSource.KAFKA_AVRO: "forebay[kafka]", ProjectSource.OTLP: "forebay[otlp]"}


_TEMPLATE: Final = ".txt"
# Modules of the project itself.
_TAKEN: Final = ("definitions",)
# Named, because the working directory may be a checkout of Forebay.
_OURS: Final = ("forebay", *PACKAGES)
# What the project is installed and tested with, whether it is installed now or not.
_NEEDED: Final = ("pip", "pytest", "setuptools")


def module_name(project: str) -> str:
    """Return the name of the module, and the pipeline, of a project: my-shop has my_shop.

    Raises:
        CommandError: Python or Forebay can't use it as a name, or Python finds another module by it.
    """
    name = project.lower().replace("-", "_").replace(".", "_").replace(" ", "_")
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise CommandError(
            f"{project!r} is no name for a project: {name!r} can't be the name of a Python module. Use letters, digits "
            "and hyphens, and begin with a letter"
        )
    try:
        Pipeline(name, interval="10s")
    except DeclarationError as error:
        raise CommandError(f"{project!r} is no name for a project: {error}") from error
    if name in _TAKEN or name.startswith("test_"):
        raise CommandError(f"{project!r} is no name for a project: {name}.py would be another of its files")
    if is_taken(name):
        raise CommandError(
            f"{project!r} is no name for a project: Python has a module {name!r} already, which {name}.py would hide. "
            "Choose another name"
        )
    return name


def is_taken(module: str) -> bool:
    """Return whether Python finds a module of this name elsewhere than in the working directory."""
    if module in sys.stdlib_module_names or module in (*_OURS, *_NEEDED):
        return True
    here = Path.cwd()
    elsewhere = [path for path in sys.path if path and Path(path).resolve() != here]
    return PathFinder.find_spec(module, elsewhere) is not None


def make_project(directory: Path, source: ProjectSource = ProjectSource.HTTP) -> list[Path]:
    """Write the files of a project named like `directory`, with this source; return their paths below it.

    Raises:
        CommandError: the name can't be used, the directory has files already, or it can't be written.
    """
    # Of "." too: the name of the directory that it is.
    directory = directory.resolve()
    module = module_name(directory.name)
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise CommandError(f"{directory} exists and is not an empty directory: name another one")
        directory.mkdir(parents=True, exist_ok=True)
        templates = resources.files("forebay.project_template")
        requirement = _REQUIREMENTS.get(source, "forebay")
        values = {"module": module, "project": module.replace("_", "-"), "requirement": requirement}
        of_source = {found.name: found for found in _in_folder(templates / source)}
        files = {**_FILES, **{name: name.removesuffix(_TEMPLATE) for name in sorted(of_source.keys() - _FILES.keys())}}
        paths = []
        for template, name in files.items():
            path = directory / Template(name).substitute(values)
            found = of_source.get(template, templates / template)
            text = Template(found.read_text(encoding="utf-8")).substitute(values)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
            paths.append(path.relative_to(directory))
    except OSError as error:
        raise CommandError(f"{directory} can't be written: {error.strerror or error}") from error
    return paths


def _in_folder(folder: Traversable) -> list[Traversable]:
    return [found for found in folder.iterdir() if found.name.endswith(_TEMPLATE)] if folder.is_dir() else []


def new(
    project: Annotated[
        Path, typer.Argument(metavar="PROJECT", help="The directory to make. Its name is the project's: my-shop.")
    ],
    source: Annotated[
        ProjectSource,
        typer.Option(
            help="What it receives: plain HTTP requests, signed web hooks, Avro from Kafka, OpenTelemetry's logs, or "
            "the lines of a log."
        ),
    ] = ProjectSource.HTTP,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Make a project of your own: a pipeline, its test, and what Dagster and pip need. It runs at once.

    The pipeline receives orders over HTTP and adds them up every ten seconds. With `--source webhook` it counts web
    hooks of GitHub, with `kafka-avro` it reads such orders from Kafka, with `otlp` it counts log records of
    OpenTelemetry, and with `logs` the requests in nginx's access log. README.md there says how to send some.
    `forebay init` is the same command.

    For example:

        forebay new my-shop
        cd my-shop
        forebay up
    """
    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    with clear_errors(console):
        paths = make_project(project, source)
    directory = project.resolve()
    module = module_name(directory.name)
    if as_json:
        files = [str(path) for path in paths]
        typer.echo(json.dumps({"directory": str(directory), "module": module, "files": files}))
        return
    for path in paths:
        console.print(f"+ {project / path}", markup=False)
    if directory != Path.cwd():
        console.print(f"\nGo on with:\n\n    cd {shlex.quote(str(project))}", markup=False)
    else:
        console.print("\nGo on with:\n", markup=False)
    console.print("    pytest\n    forebay up\n", markup=False)
    console.print("README.md there says how to send it records.", markup=False)
