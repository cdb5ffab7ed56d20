"""Turn a check of one parser into a test: replay its corpus, then search for bytes that break it.

A check takes bytes and asserts what must hold for any bytes. ``corpus/NAME`` holds bytes that broke a parser once, one
file each. Where ``FOREBAY_FUZZ_SECONDS`` is set, the search lasts that long, with another seed each time unless
``FOREBAY_FUZZ_SEED`` is set, and what breaks the check is added to the corpus. Otherwise the search is a few hundred
examples in `make searches`, and a quarter of them in `make test`.

Steps are counted, not seconds: a check may take at most ``STEPS`` calls of functions, and ``STEPS_PER_BYTE`` more for
each byte.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.mutation import mutated
from tests.support.searches import examples as part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hypothesis.strategies import SearchStrategy

CORPUS = Path(__file__).parent / "corpus"
SECONDS = "FOREBAY_FUZZ_SECONDS"
SEED = "FOREBAY_FUZZ_SEED"
STEPS = 60_000
STEPS_PER_BYTE = 150
_EXAMPLES = 150  # of a search without a time, and between two looks at the clock
_QUIET = (HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large)


def fuzzed(
    name: str,
    *,
    valid: Sequence[bytes],
    words: Sequence[bytes] = (),
    attacks: Iterable[bytes] = (),
    examples: int = _EXAMPLES,
    steps: int = STEPS,
    made_by: Callable[[SearchStrategy[bytes]], SearchStrategy[bytes]] = lambda strategy: strategy,
) -> Callable[[Callable[[bytes], object]], Callable[[], None]]:
    """Return a decorator that makes a test of a check.

    Args:
        name: of the target, and of its folder in the corpus.
        valid: messages that the parser accepts; the search mutates them.
        words: what means something to the parser; the search inserts it.
        attacks: messages to check first, besides the corpus: those that are large and made by a rule.
        examples: how many to search at once, and in all in `make searches`.
        steps: that the check may take, besides those for each byte.
        made_by: changes the search, for example so that checksums are right.
    """

    def decorate(check: Callable[[bytes], object]) -> Callable[[], None]:
        def test() -> None:
            # What is loaded by the first call is no step of the parser.
            for message in valid:
                check(message)
            for path in sorted((CORPUS / name).glob("*")):
                _replay(check, path, steps)
            for attack in attacks:
                count_steps(check, attack, steps)
            _search(name, check, made_by(mutated(valid, words)), examples, steps)

        test.__name__ = test.__qualname__ = getattr(check, "__name__", name)
        test.__doc__ = check.__doc__
        test.__module__ = check.__module__
        marked: Callable[[], None] = pytest.mark.search(test)
        return marked

    return decorate


def count_steps(check: Callable[[bytes], object], data: bytes, fixed: int = STEPS) -> None:
    """Run a check, and assert that it took no more steps than its bytes allow."""
    steps = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal steps
        steps += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        check(data)
    finally:
        sys.setprofile(before)
    most = fixed + STEPS_PER_BYTE * len(data)
    assert steps <= most, f"{steps} steps for {len(data)} bytes, at most {most} are allowed"


def _replay(check: Callable[[bytes], object], path: Path, steps: int) -> None:
    try:
        count_steps(check, path.read_bytes(), steps)
    except BaseException as error:
        error.add_note(f"{path.relative_to(CORPUS.parent)} of the corpus breaks it")
        raise


def _search(
    name: str, check: Callable[[bytes], object], messages: SearchStrategy[bytes], examples: int, steps: int
) -> None:
    seconds = float(os.environ.get(SECONDS, "0"))
    found = _Found(name)

    def keep(data: bytes) -> None:
        try:
            count_steps(check, data, steps)
        except Exception:
            found.note(data)
            raise

    phases = (Phase.generate, Phase.target, Phase.shrink)
    until = time.monotonic() + seconds
    first = int(os.environ.get(SEED) or int.from_bytes(os.urandom(8)))
    try:
        for turn in itertools.count():
            test: Any = given(messages)(keep)
            if seconds:
                test = seed(first + turn)(test)
            most = examples if seconds else part_of(examples)
            settings(max_examples=most, phases=phases, suppress_health_check=_QUIET, database=None)(test)()
            if time.monotonic() >= until:
                break
    except BaseException as error:
        found.keep(error, in_corpus=bool(seconds))
        raise


class _Found:
    """Hold the bytes that break a check: the smallest ones, because a search shrinks what it has found."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._data: bytes | None = None

    def note(self, data: bytes) -> None:
        if self._data is None or len(data) <= len(self._data):
            self._data = data

    def keep(self, error: BaseException, *, in_corpus: bool) -> None:
        if self._data is None:
            return
        if not in_corpus:
            error.add_note(f"{self._name}: these {len(self._data)} bytes break it: {self._data!r:.5000}")
            return
        path = CORPUS / self._name / hashlib.sha256(self._data).hexdigest()[:12]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(self._data)
        error.add_note(f"{path.relative_to(CORPUS.parent)} was added to the corpus: fix the parser, and commit both")
