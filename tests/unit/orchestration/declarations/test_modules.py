"""Check what is said of a pipeline module that can't be loaded: one line, with the place in the user's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestration.declarations.modules import PipelineModuleError, load_pipelines

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("no_syntax", "x = 1\nif x\n", r"SyntaxError: expected ':' \(no_syntax.py, line 2\)"),
        ("no_name", "\n\nundefined\n", r"NameError: name 'undefined' is not defined \(no_name.py, line 3\)"),
        ("raises", "raise ValueError('a\\nb')\n", r"ValueError: a \(raises.py, line 1\)"),
        (
            "no_package",
            "\nimport nowhere_at_all\n",
            r"No module named 'nowhere_at_all': install it .*pip install nowhere_at_all.* \(no_package.py, line 2\)",
        ),
        (
            "no_module_of_ours",
            "import forebay.sorces\n",
            r"imported: ModuleNotFoundError: No module named 'forebay.sorces' \(no_module_of_ours.py, line 1\)",
        ),
        ("no_such_name", "from forebay import Nothing\n", r"cannot import name .* \(no_such_name.py, line 1\)"),
        ("exits", "import sys\nsys.exit('no licence')\n", r"SystemExit: no licence \(exits.py, line 2\)"),
        ("exits_without_a_word", "import sys\nsys.exit()\n", r": SystemExit \(exits_without_a_word.py, line 2\)"),
        ("begins_late", "raise ValueError('\\n\\na')\n", r"ValueError: a \(begins_late.py, line 1\)"),
        (
            "without_text",
            "class E(Exception):\n    def __str__(self):\n        return self.missing\nraise E\n",
            r": E \(without_text.py, line 4\)",
        ),
        ("in_a_text", "\nexec('1 / 0')\n", r"division by zero \(in_a_text.py, line 2\)"),
        ("no_syntax_in_a_text", "\neval('1 +')\n", r"SyntaxError: .* \(no_syntax_in_a_text.py, line 2\)"),
        ("in_python", "import json\n\njson.loads('{')\n", r"JSONDecodeError: .* \(in_python.py, line 3\)"),
        ("in_a_package", "import numpy\n\nnumpy.zeros('a')\n", r"TypeError: .* \(in_a_package.py, line 3\)"),
        (
            "declaration",
            "from forebay import Pipeline\n\nPipeline('words', interval='no')\n",
            r"^module 'declaration': pipeline 'words': interval[^()]* \([^()]*declaration.py:3\)$",
        ),
        ("nothing", "", "declares no Pipeline"),
        (
            "sink",
            "import forebay\nforebay.ParquetSink('out', partitoin_by=['a'])\n",
            # Python says it itself from 3.13 on.
            r"keyword argument 'partitoin_by'(: did|\. Did) you mean '?partition_by'?\? \(sink.py, line 2\)",
        ),
        (
            "own_sink",
            "class MySink:\n    def __init__(self, bucket): ...\n\n\nMySink(\n    buckte=1)\n",
            r"'buckte'(: did|\. Did) you mean '?bucket'?\? \(own_sink.py, line 5\)",
        ),
        ("no_close", "def f(a): ...\nf(zzzzz=1)\n", r"argument 'zzzzz' \(no_close.py, line 2\)"),
        ("builtin", "dict.fromkeys(zzzzz=1)\n", r"takes no keyword arguments \(builtin.py, line 1\)"),
        (
            "positional",
            "from forebay import sources\n\nx = 1; sources.Kafka(\n    'h:1', topics='t')\n",
            r"1 positional .*: Kafka takes the others by name, as bootstrap_servers=… \(positional.py, line 3\)",
        ),
        (
            "positional_interval",
            "from forebay import Pipeline\n\nPipeline('words', '10s')\n",
            r"Pipeline takes the others by name, as interval=… \(positional_interval.py, line 3\)",
        ),
        (
            "beside_a_broken_module",
            (
                "import types\nfrom forebay.sources import Kafka\n\ndef fails(name): raise RuntimeError('no torch')\n"
                "lazy = types.ModuleType('lazy')\nlazy.__getattr__ = fails\nKafka('h:1', topics='t')\n"
            ),
            r"Kafka takes the others by name, as bootstrap_servers=… \(beside_a_broken_module.py, line 7\)",
        ),
        ("own_places", "def f(a): ...\nf(1, 2)\n", r"2 were given \(own_places.py, line 2\)"),
        (
            "source",
            "from forebay.sources import SocketText\n\nSocketText(\n    host='h', prot=1)\n",
            r"SocketText: .*'prot': did you mean port\?.* \(source.py, line 3\)",
        ),
    ],
)
def test_a_module_that_can_not_be_loaded_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(PipelineModuleError, match=said) as raised:
        load_pipelines(str(tmp_path / f"{name}.py"))
    assert "\n" not in str(raised.value)


def test_a_file_in_the_project_is_named_from_its_folder_and_a_missing_module_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shop_of_words").mkdir()
    (tmp_path / "shop_of_words" / "__init__.py").write_text("import json\n\n{}['a']\n")
    with pytest.raises(PipelineModuleError, match=r"KeyError: 'a' \(shop_of_words/__init__.py, line 3\)"):
        load_pipelines("shop_of_words")
    with pytest.raises(PipelineModuleError, match=f"can't be imported from {tmp_path}: No module named 'word_shop'"):
        load_pipelines("word_shop.pipelines")


def test_a_file_that_is_not_there_is_named_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineModuleError, match=f"^there is no file {tmp_path}/sub/none.py$"):
        load_pipelines("./sub/none.py")
