"""A copy of the kernels with one mutation."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from vgg16gpu.devices.kernel_source import kernel_dir, read_source, source_path

if TYPE_CHECKING:
    from tests.mutants.mutant import Mutant

REPOSITORY = kernel_dir()


def write_mutant(folder: Path, mutant: Mutant | None) -> None:
    """Fill `folder`; without a mutant the kernels are as they are."""
    shutil.copytree(REPOSITORY, folder, dirs_exist_ok=True)
    if mutant is None:
        return
    path, edit = folder / source_path(mutant.file).relative_to(REPOSITORY), mutant.edit
    text = path.read_text()
    count = text.count(edit.old)
    assert count == 1, f"mutant {mutant.name!r}: {edit.old!r} occurs {count} times in {mutant.file}, not once"
    path.write_text(text.replace(edit.old, edit.new))


def mutated_line(mutant: Mutant) -> int:
    """The number of the line that differs."""
    text = read_source(mutant.file)
    return text[: text.index(mutant.edit.old)].count("\n") + 1
