"""A contract for import-linter: no module imports itself through others, not even in an annotation.

import-linter's `acyclic_siblings` contract treats packages as modules, and `orchestration`'s packages import each
other.
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
        """Check all modules of the root packages."""
        del verbose
        imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            return ContractCheck(kept=False, metadata={"circle": error.args[1]})
        return ContractCheck(kept=True)

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the import cycle."""
        circle: list[Any] = check.metadata["circle"]
        # Each module in the list is imported by the next one.
        output.print_error(" <- ".join(circle))
