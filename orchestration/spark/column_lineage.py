"""Says which columns of streams each column of a result is computed from, as Spark's analyzed plan has it.

Spark documents no way to ask: this is the one place that knows the private names, and how Spark writes a plan as JSON.
It never guesses. A node that it does not know ends it for the whole result; a column for which the plan does not say it
has no sources. Reads no records, and starts no job.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import structlog

from orchestration.spark.reading.data_source import FORMAT
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, MutableMapping, Sequence

    from pyspark.sql import DataFrame

    from orchestration.declarations.sink import Column

    Source = tuple[str, str]
    Node = dict[str, Any]
    #: Sources of each column, by what is asked; kept by the caller, because a pipeline's plans are alike.
    Memory = MutableMapping[str, Sequence[tuple[Source, ...] | None]]

# Of a plan as text. As JSON it may have thirty times as many, and Spark's own objects for that take more.
MOST_CHARACTERS = 100_000
_MOST_REMEMBERED = 8

_RELATION = "org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation"
_PYTHON_TABLE = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"
# What computes columns, and where their expressions are.
_EXPRESSIONS = {"Project": "projectList", "Aggregate": "aggregateExpressions", "Window": "windowExpressions"}
# What has its children's columns, unchanged. A union or a CTE gives the ids of one side to what comes from several.
_UNCHANGED = re.compile(
    "CollectMetrics|Deduplicate|Distinct|Filter|GlobalLimit|Join|LocalLimit|Offset|RebalancePartitions|Repartition|"
    "RepartitionByExpression|ResolvedHint|Sample|Sort|SubqueryAlias|Tail|View"
)
# What takes a part of a value; of which columns that part was made is known for structs only.
_PARTS = frozenset(["ElementAt", "GetArrayItem", "GetArrayStructFields", "GetMapValue", "GetStructField"])
# An attribute as text; the suffixes are for BIGINT and for a watermark.
_ATTRIBUTE = re.compile(r"#(\d+)L?(?:-T\d+ms)?\Z")
# What differs between the plans of two batches: ids, names of lambdas' variables and of frames in SQL, and times such
# as the batch's.
_OF_ONE_BATCH = re.compile(r"lambda [xyz]_\d+#\d+|#\d+|_pyspark_[0-9a-f]{32}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?")
_MOST_FIELDS = 10_000

log = structlog.get_logger(__name__)


class _UnknownError(Exception):
    """This plan, or this column of it, has something that this module does not know."""


def with_sources(
    columns: tuple[Column, ...], result: DataFrame, streams: Collection[str], memory: Memory
) -> tuple[Column, ...]:
    """Return the columns of a result of these streams, with their sources where its plan says them. Never raises.

    Without a plan (Spark Connect), or with one that is too large or of another Spark, the columns are returned as they
    are. `memory` keeps what a few plans say: the next batch's plan is asked for its text only.
    """
    try:
        plan = result._jdf.queryExecution().analyzed()  # noqa: SLF001  see the module
        text = str(plan.treeString(True, False, _MOST_FIELDS, False, False))  # noqa: FBT003  the JVM's own
        leaves = _streams_of_leaves(plan)
        key = _key(text, leaves)
        if key not in memory:
            if len(memory) >= _MOST_REMEMBERED:
                memory.clear()
            memory[key] = [None] * len(columns)
            if len(text) > MOST_CHARACTERS:
                raise _UnknownError(f"a plan of {len(text)} characters")  # noqa: TRY301  one way out
            read = _Plan.read(json.loads(plan.toJSON()), leaves, streams)
            memory[key] = [read.sources(_id_of(each)) for each in str(plan.output().mkString("\0")).split("\0")]
        return tuple(replace(column, sources=found) for column, found in zip(columns, memory[key], strict=True))
    except Exception as error:  # noqa: BLE001  any Spark, any plan: the batch goes on
        log.debug("no column lineage", reason=shortened(f"{type(error).__name__}: {error}", 500))
        return columns


def _key(text: str, leaves: Sequence[str | None]) -> str:
    """Return what is equal for two plans that are equal except for what differs between batches."""
    numbers: dict[str, str] = {}
    same = _OF_ONE_BATCH.sub(lambda found: numbers.setdefault(found[0], f"#{len(numbers)}"), text)
    return hashlib.sha256(json.dumps([same, leaves]).encode()).hexdigest()


def _streams_of_leaves(plan: Any) -> list[str | None]:  # noqa: ANN401  an object of the JVM
    """Return the stream that each leaf of a plan reads; None: it reads something else."""
    leaves = plan.collectLeaves()
    return [_stream_of(leaves.apply(number)) for number in range(leaves.size())]


def _stream_of(leaf: Any) -> str | None:  # noqa: ANN401  as above
    if leaf.getClass().getName() != _RELATION:
        return None
    table = leaf.table()
    is_ours = table.name() == FORMAT and table.getClass().getName() == _PYTHON_TABLE
    return leaf.options().get("stream") if is_ours else None


def _id_of(attribute: str) -> int:
    found = _ATTRIBUTE.search(attribute)
    if found is None:
        raise _UnknownError(attribute)
    return int(found[1])


@dataclass(frozen=True, slots=True)
class _Part:
    """Part of a value: the field of a struct if there is an `ordinal`."""

    of: frozenset[_Reference]
    ordinal: int | None = None


_Reference = int | _Part
_References = frozenset[_Reference]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Hold what each attribute of a plan is computed from, by id; None: not known."""

    computed: dict[int, _References | Source | None] = field(default_factory=dict)
    fields: dict[int, Sequence[_References | None]] = field(default_factory=dict)
    found: dict[int, set[Source]] = field(default_factory=dict)

    @classmethod
    def read(cls, nodes: Sequence[Node], leaves: Sequence[str | None], streams: Collection[str]) -> _Plan:
        """Read nodes in their order, the leaves of which read these streams. Raises _UnknownError for another node."""
        made, left = cls(), iter(leaves)
        if sum(node["num-children"] == 0 for node in nodes) != len(leaves):
            raise _UnknownError("other leaves")
        for node in nodes:
            kind = _class(node)
            if kind in _EXPRESSIONS:
                for expression in node[_EXPRESSIONS[kind]]:
                    made._add(expression)
            elif kind == "Generate":
                made._add_generated(node["generator"], node["generatorOutput"])
            elif node["num-children"] == 0:
                stream = next(left)
                made._add_leaf(node.get("output") or [], stream if stream in streams else None)
            elif _UNCHANGED.fullmatch(kind) is None:
                raise _UnknownError(kind)
        return made

    def sources(self, id_: int) -> tuple[Source, ...] | None:
        """Return the columns of streams from which an attribute is computed; None: not known."""
        try:
            return tuple(sorted(self._sources(id_)))
        except _UnknownError:
            return None

    def _add(self, expression: Sequence[Node]) -> None:
        first = expression[0]
        if _class(first) == "AttributeReference":
            return
        if _class(first) != "Alias":
            raise _UnknownError(_class(first))
        id_ = first["exprId"]["id"]
        self._define(id_, _known_references(expression))
        if len(expression) > 1 and _class(expression[1]) == "CreateNamedStruct":
            # A name and a value for each field.
            self.fields[id_] = [_known_references(child) for child in _children(expression[1:])[1::2]]

    def _add_generated(self, generator: Sequence[Node], output: Sequence[Sequence[Node]]) -> None:
        found = _known_references(generator)
        if found is not None and len(output) > 1:
            # Such as the keys and the values of a map.
            found = frozenset([_Part(found)])
        for [attribute] in output:
            self._define(attribute["exprId"]["id"], found)

    def _add_leaf(self, output: Iterable[Sequence[Node]], stream: str | None) -> None:
        for [attribute] in output:
            self._define(attribute["exprId"]["id"], None if stream is None else (stream, attribute["name"]))

    def _define(self, id_: int, computed_from: _References | Source | None) -> None:
        if self.computed.setdefault(id_, computed_from) != computed_from:
            self.computed[id_] = None

    def _sources(self, reference: _Reference) -> set[Source]:
        if isinstance(reference, _Part):
            return self._sources_of_part(reference)
        if reference not in self.found:
            computed = self.computed.get(reference)
            if computed is None:
                raise _UnknownError(str(reference))
            self.found[reference] = self._all(computed) if isinstance(computed, frozenset) else {computed}
        return self.found[reference]

    def _sources_of_part(self, part: _Part) -> set[Source]:
        if part.ordinal is not None:
            [of] = part.of
            if isinstance(of, int) and of in self.fields and self.computed[of] is not None:
                return self._all(self.fields[of][part.ordinal])
        found = self._all(part.of)
        if len(found) > 1:
            raise _UnknownError("a part of a value made of several columns")
        return found

    def _all(self, references: _References | None) -> set[Source]:
        if references is None:
            raise _UnknownError
        return set().union(*map(self._sources, references))


def _class(node: Node) -> str:
    return str(node["class"]).rpartition(".")[2]


def _known_references(expression: Sequence[Node]) -> _References | None:
    try:
        return _references(expression, 0)[0]
    except _UnknownError:
        return None


def _children(expression: Sequence[Node]) -> list[Sequence[Node]]:
    """Return the children of an expression, each with those below it."""
    found, begin = [], 1
    for _ in range(expression[0]["num-children"]):
        _, end = _references(expression, begin)
        found.append(expression[begin:end])
        begin = end
    return found


def _references(expression: Sequence[Node], begin: int) -> tuple[_References, int]:
    """Return the attributes in the expression that begins at a node, and where it ends. Raises _UnknownError."""
    node, kind, end = expression[begin], _class(expression[begin]), begin + 1
    if "plan" in node:
        raise _UnknownError(f"a query in an expression: {kind}")
    if kind == "AttributeReference":
        return frozenset([node["exprId"]["id"]]), end
    found: _References = frozenset()
    for _ in range(node["num-children"]):
        below, end = _references(expression, end)
        found |= below
    if kind in _PARTS and found:
        is_field = kind == "GetStructField" and _class(expression[begin + 1]) == "AttributeReference"
        return frozenset([_Part(found, node["ordinal"] if is_field else None)]), end
    return found, end
