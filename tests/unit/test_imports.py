"""Check that light packages load neither Dagster nor Spark: import each in a new interpreter, look at what it loaded.

import-linter can't see this: it reads the imports of modules, not what a parent package's `__init__` also loads.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands.run_program import run_program

_ROOT = Path(__file__).parents[2]
_HEAVY = ("dagster", "pyspark", "py4j", "pandas")
_LIGHT_PACKAGES = ("receiver_runtime", "tracker_store")
_LIGHT_MODULES = (
    "orchestration.batches.batch_schedule",
    "orchestration.tracker.batch_pusher",
    "forebay",
    "forebay.parsing",
    "forebay.records",
    "forebay.sink",
    "forebay.source",
    "forebay.sources",
    "forebay.web_hooks",
    "forebay.testing",
    "orchestration.declarations.pipeline",
    "orchestration.declarations.settings",
)

# What `forebay agent` and `forebay tracker` import when they are called, and later.
_WITHOUT_ARROW = {
    "agent": (
        "forebay.cli.main",
        "forebay.cli.commands.agent",
        "receiver_runtime.agent.agent",
        "receiver_runtime.agent.batch_drivers",
        "receiver_runtime.block_store.frames.encryption",
        "receiver_runtime.agent.left_processes",
        "receiver_runtime.agent.service_manager",
        "receiver_runtime.agent.store_attachment",
    ),
    "tracker": (
        "forebay.cli.main",
        "forebay.cli.commands.agent",
        "orchestration.batches.attached_store",
        "orchestration.batches.noted_replicas",
        "orchestration.tracker.batch_pusher",
        "orchestration.tracker.clean_up.cleaner",
        "orchestration.dagster_instance.dagster_client",
        "orchestration.tracker.http.http",
        "orchestration.tracker.clean_up.link_cleaner",
        "orchestration.tracker.placement_rules",
        "orchestration.tracker.tracker",
    ),
}
_OPEN_STORE = "__import__('receiver_runtime.block_store.stores.stores', fromlist=['x']).open_block_store"

_PROGRAM = (
    "import importlib, json, sys\n"
    "for name in sys.argv[1].split(','): importlib.import_module(name)\n"
    "exec(sys.argv[2])\n"
    "print(json.dumps(sorted(sys.modules)))\n"
)


def _modules_of(package: str) -> list[str]:
    return [package, *(found.name for found in pkgutil.walk_packages([str(_ROOT / package)], f"{package}."))]


def _loaded_by(*names: str, then: str = "") -> list[str]:
    answer = run_program([sys.executable, "-c", _PROGRAM, ",".join(names), then], cwd=_ROOT)
    assert answer.returncode == 0, answer.stderr
    loaded: list[str] = json.loads(answer.stdout)
    return loaded


def test_light_packages_load_neither_dagster_nor_spark() -> None:
    names = [*_LIGHT_MODULES, *(module for package in _LIGHT_PACKAGES for module in _modules_of(package))]
    loaded = _loaded_by(*names)
    assert set(names) <= set(loaded)
    assert [module for module in loaded if module.partition(".")[0] in _HEAVY] == []


def test_status_command_loads_quickly() -> None:
    """Check that `forebay status`, which has five seconds in all, does not load what only other commands need."""
    loaded = _loaded_by("forebay.cli.main", "forebay.cli.commands.status")
    needless = ("alembic", "numpy", "prometheus_client", "pyarrow", "uvicorn", *_HEAVY)
    assert [module for module in loaded if module.partition(".")[0] in needless] == []


@pytest.mark.parametrize("role", sorted(_WITHOUT_ARROW))
def test_process_that_reads_no_blocks_opens_their_store_without_arrow(role: str, tmp_path: Path) -> None:
    """Check that agent and tracker, which run for ever, do not hold the memory of what only receivers and Spark use."""
    loaded = _loaded_by(*_WITHOUT_ARROW[role], then=f"{_OPEN_STORE}({str(tmp_path)!r})")
    assert {*_WITHOUT_ARROW[role], "receiver_runtime.block_store.stores.local"} <= set(loaded)
    needless = ("alembic", "numpy", "pyarrow", *_HEAVY)
    assert [module for module in loaded if module.partition(".")[0] in needless] == []


def test_a_command_that_prints_no_table_loads_neither_rich_nor_pygments() -> None:
    program = (
        "import sys\n"
        "from forebay.cli.entry import main\n"
        "sys.argv = ['forebay', '--version']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('rich', 'pygments', 'structlog') if name in sys.modules])\n"
        "from rich.console import Console\n"
        "Console().print('printed by rich')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[1:] == ["['structlog']", "printed by rich"]


def test_the_client_needs_the_standard_library_alone() -> None:
    """Check that a sender on a small host loads no package of others, and of Forebay only a few modules."""
    loaded = _loaded_by("forebay.client")
    ours = {"forebay", "forebay_contrib", "orchestration", "receiver_runtime", "tracker_store"}
    roots = {module.partition(".")[0].removeprefix("_") for module in loaded}
    others = roots - ours - {"_main__"} - {name.removeprefix("_") for name in sys.stdlib_module_names}
    assert {name for name in others if not name.startswith(("virtualenv", "editable"))} == set()
    assert roots & {*_HEAVY, "pyarrow", "pydantic", "sqlalchemy"} == set()
    assert [module for module in loaded if module.partition(".")[0] in ours - {"forebay"}] == [
        "tracker_store",
        "tracker_store.long_texts",
    ]


def test_a_broken_package_breaks_no_import_of_all_names(tmp_path: Path) -> None:
    about = tmp_path / "broken-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    groups = ("forebay.sinks", "forebay.sources")
    (about / "entry_points.txt").write_text("".join(f"[{group}]\nbroken = none_such:Broken\n" for group in groups))
    program = (
        f"import sys\nsys.path.append({str(tmp_path)!r})\n"
        "from forebay import *\nfrom forebay.sources import *\n"
        "import forebay\nprint('Broken' in dir(forebay), DeltaSink.__name__, Kafka.__name__)\n"
    )
    done = run_program([sys.executable, "-c", program])
    assert done.stdout.split() == ["True", "DeltaSink", "Kafka"], done.stderr


@pytest.mark.parametrize(
    "package",
    [
        *("forebay_contrib", "orchestration", "receiver_runtime", "tracker_store"),
        *("receiver_runtime.block_store", "receiver_runtime.sources"),
    ],
)
def test_package_init_files_are_empty(package: str) -> None:
    """Check design §3: otherwise, importing one leaf would also load what its parent happens to re-export."""
    assert (_ROOT / package.replace(".", "/") / "__init__.py").read_text().strip() == ""


def test_guard_uses_only_the_standard_library() -> None:
    """Check that the guard starts fast: it is started several times, by its path and without site-packages."""
    answer = run_program(
        [sys.executable, "-I", "-S", str(_ROOT / "forebay" / "cli" / "services" / "guard.py"), "--help"]
    )
    assert answer.returncode == 0, answer.stderr


def test_check_of_loaded_modules_can_fail() -> None:
    assert "dagster" in _loaded_by("dagster")
