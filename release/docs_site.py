"""Prepare the pages in docs/ for MkDocs (``mkdocs.yml`` names this file as a hook); `make docs` builds the site.

Owns what differs between a page in the repository and on the site: the navigation, which follows the folders; pages
that the program writes while the site is built; links to files outside of docs/, which become pages of the site; and
the words after a fence's language, which are for tests. It changes no file. MkDocs is imported where it is needed: it
is no dependency of Forebay.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: The folder of the site with files of the repository to which pages link.
OUTSIDE = "repository"

#: The sections, each with its folder and the pages that come first, if they are there; others follow by name.
SECTIONS: Sequence[tuple[str, str, Sequence[str]]] = (
    ("How-to", "how-to", ("deploy", "several-hosts", "monitoring", "status-page", "sql", "dagster", "outputs")),
    ("Sources", "how-to/sources", ("README",)),
    ("Reference", "reference", ("cli", "settings", "receiver-settings", "sinks", "schema")),
    ("Explanation", "explanation", ("guarantees", "reliability", "path-of-a-record", "driver-log")),
    ("Runbooks", "runbooks", ()),
)
#: Pages that are on the site alone, by the name that `forebay reference` gives them.
GENERATED = ("cli", "python-api")
TUTORIAL = "how-to/tutorial.md"
COMPARISON = "explanation/comparison.md"

_LINK = re.compile(r"(?<=\]\()(?!https?://|mailto:|#)([^)#\s]+)(?=[)#])")
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<language>[\w+-]+)(?P<words> [^\n`{]+)$", re.MULTILINE)
_FILE = re.compile(r"\bfile=(\S+)")


def contributed_pages() -> list[Path]:
    """Return the page of each contributed kind, in its folder."""
    return sorted((ROOT / "forebay_contrib").glob("*/README.md"))


def navigation(docs: Path = DOCS, generated: Sequence[str] = (), contributed: Sequence[Path] = ()) -> list[Any]:
    """Return MkDocs' `nav`: each page of `docs` once, and the `generated` and `contributed` ones.

    A page without a title here has the title of its heading.
    """
    special = {TUTORIAL, COMPARISON}
    entries: list[Any] = ["index.md", {"Tutorial": TUTORIAL}]
    seen = {"index.md", *special}
    for title, folder, first in SECTIONS:
        names = [_name(path, docs) for path in _ordered((docs / folder).glob("*.md"), first)]
        names = [name for name in names if name not in special]
        if folder == "reference":
            names += generated
        seen.update(names)
        entries.append({title: names})
    if contributed:
        entries.append({"Contributed": [site_path(page) for page in contributed]})
    entries.append({"Comparison": COMPARISON})
    rest = sorted(_name(path, docs) for path in docs.rglob("*.md"))
    entries.append({"More": [name for name in rest if name not in seen]})
    return entries


def _name(path: Path, docs: Path) -> str:
    return path.relative_to(docs).as_posix()


def _ordered(pages: Iterable[Path], first: Sequence[str]) -> list[Path]:
    places = {stem: place for place, stem in enumerate(first)}
    return sorted(pages, key=lambda path: (places.get(path.stem, len(places)), path.stem))


def site_path(target: Path) -> str:
    """Return where the site has a file or directory of the repository that is outside of docs/."""
    path = f"{OUTSIDE}/{target.relative_to(ROOT).as_posix()}"
    # Markdown is a page of the same name; the others are shown as text, and a directory as a list.
    return path if target.suffix == ".md" else f"{path}.md"


def link_targets(markdown: str, directory: Path) -> Iterator[Path]:
    """Yield the files and directories outside of docs/ to which a text links that is in `directory`."""
    for link in _LINK.findall(markdown):
        target = (directory / link).resolve()
        if target.is_relative_to(ROOT) and not target.is_relative_to(DOCS) and target.exists():
            yield target


def prepared(markdown: str, directory: Path, page: str) -> str:
    """Return a page's text for the site.

    Args:
        markdown: the text as the repository has it.
        directory: where that is, which its links are relative to.
        page: the path of the page on the site.
    """

    def linked(found: re.Match[str]) -> str:
        target = (directory / found[1]).resolve()
        if target == DOCS:
            path = "index.md"
        elif target.is_relative_to(DOCS):
            path = target.relative_to(DOCS).as_posix()
            path = f"{path}/README.md" if target.is_dir() else path
        elif target.is_relative_to(ROOT) and target.exists():
            path = site_path(target)
        else:
            return found[1]
        return posixpath.relpath(path, posixpath.dirname(page) or ".")

    def fenced(found: re.Match[str]) -> str:
        file = _FILE.search(found["words"])
        title = f' title="{file[1]}"' if file else ""
        return f"{found['indent']}{found['ticks']}{found['language']}{title}"

    return _FENCE.sub(fenced, _LINK.sub(linked, markdown))


def text_of(target: Path) -> str:
    """Return the page for a file or directory of the repository."""
    name = target.relative_to(ROOT).as_posix()
    if target.suffix == ".md":
        return prepared(target.read_text(encoding="utf-8"), target.parent, site_path(target))
    if target.is_dir():
        files = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
        listed = "\n".join(f"- `{file}`" for file in files if "__pycache__" not in file)
        return f"# {name}\n\nThis directory of the repository has these files:\n\n{listed}\n"
    content = target.read_text(encoding="utf-8").rstrip("\n")
    return f"# {name}\n\n````{target.suffix.removeprefix('.') or 'text'}\n{content}\n````\n"


def outside_files() -> dict[str, Path]:
    """Return the files and directories outside of docs/ to which the site's pages link, by their paths on the site."""
    found: dict[str, Path] = {}
    waiting = list(DOCS.rglob("*.md"))
    while waiting:
        page = waiting.pop()
        for target in link_targets(page.read_text(encoding="utf-8"), page.parent):
            if site_path(target) not in found:
                found[site_path(target)] = target
                if target.suffix == ".md":
                    waiting.append(target)
    return dict(sorted(found.items()))


def _written(page: str) -> str:
    """Return a page of the reference as the program writes it, which is installed beside the site's own environment."""
    command = [str(ROOT / ".venv" / "bin" / "forebay"), "reference", page]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout  # noqa: S603  ours


def on_config(config: Any) -> Any:  # noqa: ANN401  MkDocs' own type
    """Set the navigation."""
    generated = [f"reference/{page}.md" for page in GENERATED]
    config["nav"] = navigation(generated=generated, contributed=contributed_pages())
    return config


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401
    """Add the files outside of docs/ to which pages link; they are in no section."""
    from mkdocs.structure.files import File, InclusionLevel  # noqa: PLC0415

    for name in GENERATED:
        files.append(File.generated(config, f"reference/{name}.md", content=_written(name)))
    contributed = contributed_pages()
    for path, target in outside_files().items():
        page = File.generated(config, path, content=text_of(target))
        if target not in contributed:
            page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_more: object) -> str:  # noqa: ANN401
    """Prepare the text of a page of docs/; those outside were prepared when they were added."""
    path: str = page.file.src_uri
    if path.startswith(f"{OUTSIDE}/"):
        return markdown
    return prepared(markdown, (DOCS / path).parent, path)
