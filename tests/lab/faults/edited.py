"""A variant of the lab whose kernel file differs from the right one in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from vgg16gpu.devices.kernel_source import read_source
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant


@dataclass(frozen=True)
class Fault:
    """`old`, which stands once in the kernel file of `variant` or in its headers of the lab, becomes `new`."""

    variant: Variant
    old: str
    new: str
    problem: Problem  # that shows it
    parameters: tuple[tuple[str, int], ...] = ()

    @property
    def source(self) -> str:
        """The right file and its headers of the lab, as one text."""
        once = "#pragma once\n"  # a warning in a file that nobody includes
        return re.sub(
            r'#include "(lab/\w+\.cuh)"\n',
            lambda found: read_source(found[1]).replace(once, ""),
            read_source(self.variant.source),
        )

    @property
    def line(self) -> int:
        """Where the texts begin to differ."""
        return self.source[: self.source.index(self.old)].count("\n") + 1

    def planted(self, folder: Path) -> Variant:
        """The variant with the fault; its kernel file lies in `folder`."""
        right = self.source
        assert right.count(self.old) == 1, f"{self.old!r} occurs {right.count(self.old)} times, not once"
        return _with_source(self.variant, folder / "planted", right.replace(self.old, self.new))

    def removed(self, folder: Path) -> Variant:
        """The same without the fault."""
        return _with_source(self.variant, folder / "removed", self.source)


def _with_source(variant: Variant, folder: Path, text: str) -> Variant:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / Path(variant.source).name
    path.write_text(text)

    def elsewhere(step: KernelLaunch) -> KernelLaunch:
        """Kernels of other files stay."""
        if step.kernel.source != variant.source:
            return step
        return replace(step, kernel=replace(step.kernel, source=str(path)))

    def launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
        made = variant.launches(problem, parameters, places)
        steps = tuple(map(elsewhere, made.compute)), tuple(map(elsewhere, made.convert))
        return replace(made, compute=steps[0], convert=steps[1])

    return replace(variant, source=str(path), launches=launches)
