"""A contract of import-linter's: no module imports itself by way of others, in an annotation neither.

Its own `acyclic_siblings` takes packages for modules, and `orchestration`'s use one another.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from importlinter import Contract, ContractCheck, output

if TYPE_CHECKING:
    from grimp import ImportGraph


class AcyclicModulesContract(Contract):
    """See the module."""

    type_name = "acyclic_modules"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Of all modules of the root packages."""
        del verbose
        imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            return ContractCheck(kept=False, metadata={"circle": error.args[1]})
        return ContractCheck(kept=True)

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name the circle."""
        circle: list[Any] = check.metadata["circle"]
        # Each is imported by the next.
        output.print_error(" <- ".join(circle))
