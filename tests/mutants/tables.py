"""All mutants: of each table in this folder, found by its name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

from tests.mutants.mutant import Mutant

_TABLES: Final = [
    import_module(f"tests.mutants.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("table*.py"))
    if path.stem != Path(__file__).stem
]
MUTANTS: Final[tuple[Mutant, ...]] = tuple(mutant for table in _TABLES for mutant in getattr(table, "MUTANTS", ()))
