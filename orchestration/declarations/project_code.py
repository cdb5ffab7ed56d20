"""Find the modules of a user's project, and keep a copy of each version of them.

A project's module is one that its pipeline module, or the one with its own Dagster definitions, imports, directly or
not, and that belongs neither to Python nor to an installed package nor to Forebay; of a package all modules count, but
tests that no other module names. They are found by reading them: this module never imports one, so a module that fails
to import is found too. Names in texts count as imports where the project's folder has such a module (plug-ins).
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import json
import os
import re
import sys
import sysconfig
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.declarations.project_file import project_definitions
from tracker_store.host.code_in_force import LINK, CodeCopy, CodeState, loaded_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from importlib.machinery import ModuleSpec

# A change of these packages is an upgrade of Forebay, which restarts every process anyway.
OWN_PACKAGES = frozenset(
    {"forebay", "forebay_contrib", "orchestration", "receiver_runtime", "tracker_store", "migrations"}
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STDLIB = frozenset(str(Path(sysconfig.get_path(key)).resolve()) for key in ("stdlib", "platstdlib"))
# A class that is named by its path, as a receiver's: it is imported without an `import`.
_NAMED = re.compile(r"([A-Za-z_]\w*)(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
# What may be a module's name, or the beginning of one.
_MENTIONED = re.compile(r"([A-Za-z_]\w*)(\.[A-Za-z_]\w*)*\.?")
# Modules and packages of tests, by the names that pytest and everyone gives them.
_OF_TESTS = re.compile(r"conftest|tests?|test_\w+")
_VERSION_DIGITS = 12
_APPLIED = "applied"
_MODULE = "module"
_NOTICE = "notice"
_DECLARED = "declared"
# Copies that are kept: processes of earlier versions may still start workers from them.
_KEPT = 10


@dataclass(frozen=True, slots=True)
class ProjectCode:
    """Hold one version of a project's modules: by name, the file and its content."""

    version: str
    modules: Mapping[str, tuple[Path, bytes]]

    def changed_since(self, earlier: ProjectCode | None) -> list[str]:
        """Return the names of the files that an earlier version has not, or has with other content.

        If there is none, those that are gone. (A file that can't be read as Python imports nothing: they may be there.)
        """
        before = {} if earlier is None else earlier.modules
        new = {name for name, found in self.modules.items() if before.get(name) != found}
        gone = before.keys() - self.modules.keys()
        return sorted({self.modules[name][0].name for name in new} or {before[name][0].name for name in gone})


def _version(sources: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(f"{name}\0{len(source)}\0".encode())
        digest.update(source)
    return digest.hexdigest()[:_VERSION_DIGITS]


def loaded_version(modules: Collection[str]) -> str | None:
    """Return the version of the project's modules that this process has loaded, `modules` among them.

    Without a copy in force it is a hash of the files as they are now: call it when they have just been loaded. None if
    none of them is in a file.
    """
    if (copy := loaded_copy()) is not None:
        return copy.version
    sources: dict[str, bytes] = {}
    # Thousands of modules are in some hundred folders.
    resolve = cache(Path.resolve)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and file.endswith(".py") and (name in modules or is_of_project(name, Path(file), resolve)):
            with contextlib.suppress(OSError):
                sources[name] = Path(file).read_bytes()
    return _version(sources) if sources else None


def is_of_project(name: str, file: Path, resolve: Callable[[Path], Path] = Path.resolve) -> bool:
    """Return whether a loaded module is the user's: neither Python's nor an installed package's nor Forebay's.

    `resolve` follows the links of its folder.
    """
    return name != "__main__" and name.partition(".")[0] not in OWN_PACKAGES and _is_users(file, resolve)


class ProjectReader:
    """Read a project's modules again and again, each file only when it has changed."""

    def __init__(self, module: str) -> None:
        """Take the name of the pipeline module, or the path of its file, as `load_pipelines` does.

        The project's own Dagster definitions belong to its code too. Raises ProjectFileError.
        """
        path = Path(module).resolve() if module.endswith(".py") else None
        self._module = module if path is None else path.stem
        self._search = str(Path.cwd() if path is None else path.parent)
        self._first = module.partition(".")[0] if path is None else path.stem
        definitions = project_definitions()
        self._begins_with = {self._first, *([] if definitions is None else [definitions.partition(".")[0]])}
        self._read: dict[Path, tuple[tuple[int, int, int], bytes, _Names]] = {}
        # Names that are Python's, or an installed package's.
        self._passed_over = {*OWN_PACKAGES, *sys.builtin_module_names, *sys.stdlib_module_names} - self._begins_with

    def read(self) -> ProjectCode:
        """Return the project's modules as they are now. A file that goes meanwhile is left out."""
        importlib.invalidate_caches()
        modules: dict[str, tuple[Path, bytes]] = {}
        wanted, seen = sorted(self._begins_with), set(self._begins_with)
        while wanted:
            for name, path in self._files(wanted.pop()):
                try:
                    source, names = self._file(path)
                except OSError:
                    continue
                modules[name] = (path, source)
                new = names.imported - seen - self._passed_over
                new |= {one for one in names.mentioned - seen - self._passed_over if self._is_beside(one)}
                seen |= new
                wanted += sorted(new)
        for name in _unnamed_tests({name: source for name, (_, source) in modules.items()}) - {self._module}:
            del modules[name]
        return ProjectCode(_version({name: source for name, (_, source) in modules.items()}), modules)

    def _is_beside(self, name: str) -> bool:
        """Return whether the project's folder has a module or a package of this name."""
        folder = Path(self._search, name)
        return folder.with_suffix(".py").is_file() or (folder / "__init__.py").is_file()

    def _files(self, top: str) -> Iterator[tuple[str, Path]]:
        """Give the modules of a package or module of the project, with their files; none if it is not the project's."""
        spec = self._spec(top)
        if spec is None:
            return
        folders = list(spec.submodule_search_locations or ())
        # As they are found, links and all: a module that builds paths from its file's declares the same everywhere.
        places = [Path(place).absolute() for place in (folders or [spec.origin or ""])]
        if not all(map(_is_users, places)) and top != self._first:
            self._passed_over.add(top)
            return
        for place in places:
            if folders:
                for name, file in _package(top, place):
                    # Of Forebay's own packages only the module itself: the demo's.
                    if top not in OWN_PACKAGES or name == self._module:
                        yield name, file
            elif place.suffix == ".py":
                yield top, place

    def _spec(self, top: str) -> ModuleSpec | None:
        """Return where a top-level name would be imported from, without importing it."""
        finders = [finder for finder in sys.meta_path if not isinstance(finder, CodeCopy) and finder is not PathFinder]
        try:
            # Packages that are installed from their folder may have a finder of their own.
            return PathFinder.find_spec(top, [self._search, *sys.path]) or next(
                (spec for finder in finders if (spec := finder.find_spec(top, None)) is not None), None
            )
        except (ImportError, ValueError):
            return None

    def _file(self, path: Path) -> tuple[bytes, _Names]:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        known = self._read.get(path)
        if known is None or known[0] != stamp:
            source = path.read_bytes()
            known = self._read[path] = (stamp, source, _names(source))
        return known[1], known[2]


def _is_users(found: Path, resolve: Callable[[Path], Path] = Path.resolve) -> bool:
    place = found.resolve() if found.is_symlink() else resolve(found.parent)
    return _INSTALLED.isdisjoint(place.parts) and not any(place.is_relative_to(folder) for folder in _STDLIB)


def _package(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Give all modules below a package's folder, also in packages behind links; each folder once."""
    seen: set[str] = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        is_linked = here != str(folder) and Path(here).is_symlink()
        if (real := os.path.realpath(here)) in seen or (is_linked and "__init__.py" not in files):
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(entry for entry in folders if entry.isidentifier() and entry != "__pycache__")
        parts = Path(here).relative_to(folder).parts
        for file in files:
            stem, dot, suffix = file.rpartition(".")
            if dot and suffix == "py" and stem.isidentifier():
                yield ".".join((name, *parts, *(() if stem == "__init__" else (stem,)))), Path(here) / file


@dataclass(frozen=True, slots=True)
class _Names:
    """Hold the top-level names that a module imports, anywhere in it, and those that its texts may mean."""

    imported: frozenset[str] = frozenset()
    mentioned: frozenset[str] = frozenset()


def _names(source: bytes) -> _Names:
    """Return a module's names; none if it can't be parsed."""
    try:
        # The import shows the module's warnings, and this would show them again and again.
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return _Names()
    imported: set[str] = set()
    mentioned: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                imported |= {alias.name.partition(".")[0] for alias in names}
            case ast.ImportFrom(module=str(name), level=0):
                imported.add(name.partition(".")[0])
            case ast.Constant(value=str(text)):
                if found := _NAMED.fullmatch(text):
                    imported.add(found[1])
                elif found := _MENTIONED.fullmatch(text):
                    mentioned.add(found[1])
            case _:
                pass
    return _Names(frozenset(imported), frozenset(mentioned))


def _unnamed_tests(sources: Mapping[str, bytes]) -> set[str]:
    """Return the modules of tests that are named in no other module."""
    word_of = {
        name: word for name in sources if (word := next(filter(_OF_TESTS.fullmatch, name.split(".")), None)) is not None
    }
    if not word_of:
        return set()
    others = b"\n".join(source for name, source in sources.items() if name not in word_of)
    return {name for name, word in word_of.items() if re.search(rf"\b{word}\b".encode(), others) is None}


def same_code(before: CodeCopy, after: CodeCopy, module: str) -> bool:
    """Return whether a module, and all of the project that it imports, are the same in both copies."""
    return _reached(before.sources(), module) == _reached(after.sources(), module)


def _reached(sources: Mapping[str, bytes], module: str) -> dict[str, bytes]:
    first = module.partition(".")[0]
    found: dict[str, bytes] = {}
    wanted, seen = [first], {first}
    while wanted:
        top = wanted.pop()
        of_it = {name: source for name, source in sources.items() if name.partition(".")[0] == top}
        found |= of_it
        names = [_names(source) for source in of_it.values()]
        new = frozenset[str]().union(*(one.imported | one.mentioned for one in names)) - seen
        seen |= new
        wanted += new
    return found


class CodeCopies:
    """Keep the copies of an installation's versions, and the link to the one in force."""

    def __init__(self, home: Path) -> None:
        """Keep them in the folder `code` of this FOREBAY_HOME."""
        self._folder = home.resolve() / "code"
        self.link = self._folder / LINK

    def keep(self, code: ProjectCode) -> Path:
        """Write a version's copy, and return its file; delete those of versions long past."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self.file_of(code.version)
        copy = {
            "version": code.version,
            "modules": {
                name: {"path": str(path), "source": source.decode("latin-1")}
                for name, (path, source) in sorted(code.modules.items())
            },
        }
        descriptor, new = tempfile.mkstemp(dir=self._folder, prefix="new.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as text:
            json.dump(copy, text)
        Path(new).replace(file)
        in_force = self.in_force()
        newest = sorted(self._folder.glob("*.json"), key=lambda found: found.stat().st_mtime_ns, reverse=True)
        for old in newest[_KEPT:]:
            # The clock may have been set back: the newest file is not always the last one here.
            if old not in (in_force, file):
                old.unlink(missing_ok=True)
        return file

    def file_of(self, version: str) -> Path:
        """Return the file of a version's copy, whether it is there or not."""
        return self._folder / f"{version}.json"

    def in_force(self) -> Path | None:
        """Return the file of the copy in force, or None."""
        return Path(os.path.realpath(self.link)) if self.link.is_symlink() else None

    def put_in_force(self, file: Path) -> None:
        """Let processes that start from now on load this copy."""
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="new.") as aside:
            new = Path(aside) / LINK
            new.symlink_to(file)
            new.replace(self.link)

    def apply(self, version: str) -> None:
        """Say to a running `forebay up` that a person has applied this version; nothing without one."""
        if self._folder.is_dir():
            self._write(_APPLIED, version)

    def applied(self) -> tuple[str, int] | None:
        """Return the version that a person has applied last, and when; None if none was."""
        file = self._folder / _APPLIED
        try:
            return file.read_text(encoding="utf-8"), file.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def of(self, module: str) -> None:
        """Keep the name of the module that the versions are of, for commands that name none."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write(_MODULE, module)

    def module(self) -> str:
        """Return what `of` keeps; empty if there is none."""
        return self._read(_MODULE)

    def declares(self, declared: Mapping[str, Any] | None) -> None:
        """Keep what the version in force declares, as ``compatibility.declared`` returns it; None: none is in force.

        Beside it, as `lost`, the pipelines that versions before it had and this one has not.
        """
        before = self.declared() or {"pipelines": {}, "lost": []}
        lost = {*before["pipelines"], *before["lost"]}
        try:
            self._write(
                _DECLARED,
                "" if declared is None else json.dumps({**declared, "lost": sorted(lost - {*declared["pipelines"]})}),
            )
        except OSError:
            # People are told less, and all goes on.
            (self._folder / _DECLARED).unlink(missing_ok=True)

    def declared(self) -> dict[str, Any] | None:
        """Return what `declares` keeps; None if there is nothing."""
        try:
            found: dict[str, Any] = json.loads(self._read(_DECLARED))
        except ValueError:
            return None
        return found

    def note(self, notice: str) -> None:
        """Keep what people should know of the code that is not in force; empty: nothing."""
        self._write(_NOTICE, notice)

    def notice(self) -> str:
        """Return what `note` keeps; empty if there is none."""
        return self._read(_NOTICE)

    def state(self) -> CodeState:
        """Return what `note` keeps, and the pipelines of what `declares` keeps."""
        declared = self.declared()
        return CodeState(self.notice(), None if declared is None else [*declared["pipelines"]])

    def _write(self, name: str, text: str) -> None:
        if not text:
            (self._folder / name).unlink(missing_ok=True)
            return
        descriptor, new = tempfile.mkstemp(dir=self._folder, prefix="new.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(new).replace(self._folder / name)

    def _read(self, name: str) -> str:
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except OSError:
            return ""
