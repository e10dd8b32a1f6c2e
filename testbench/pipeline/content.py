"""What was found, as plain data: what goes into the JSON file, and what tables are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from testbench.pipeline.ceilings import Verdict
from testbench.pipeline.memory import Memory, fields, is_flat
from testbench.pipeline.methods import methods
from testbench.pipeline.others import Others
from testbench.pipeline.stage import StageTime
from testbench.pipeline.wanted import Work
from testbench.pipeline.whole_runs import WholeRuns
from vgg16gpu.bench.records.record import Content, model_identity
from vgg16gpu.pictures.choices import GPU

SCHEMA: Final = 1
WHAT: Final = "from a folder of pictures to rows of a CSV"


@dataclass
class Findings:
    """What a benchmark of the road from a folder to rows found, as far as it has come."""

    cores: int
    environment: Mapping[str, Any] = field(default_factory=dict)
    gpu_before: Sequence[Mapping[str, str]] = ()
    stages: list[StageTime] = field(default_factory=list)
    runs: list[WholeRuns] = field(default_factory=list)
    others: Others = field(default_factory=lambda: Others([], []))
    memory: list[Memory] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def of_each_precision(self) -> list[WholeRuns]:
        """The first runs of each."""
        return [run for run in self.runs if run.decode == self.runs[0].decode]

    @property
    def failures(self) -> list[str]:
        """What of ours went wrong."""
        return [failure for run in self.runs for failure in run.failures]


def content(work: Work, findings: Findings) -> Content:
    """Everything, ready for `json.dumps`. Times are seconds; rates a second; memory bytes."""
    wanted, device = work.wanted, findings.environment["device"]
    return {
        "schema": SCHEMA,
        "what": WHAT,
        "pipeline": {
            "regime": "page cache warm",
            "repeats": wanted.repeats,
            "cores": findings.cores,
            "pictures": {"folder": _from_here(wanted.folder), "count": len(work.files), "nbytes": work.nbytes},
        },
        "model": {**model_identity(wanted.model.path, work.shape), "path": _from_here(wanted.model.path)},
        "preprocess": work.preprocess.fields(),
        "device": {"kind": device["kind"], "name": device["name"]},
        "environment": findings.environment,
        "gpu_before": list(findings.gpu_before),
        "methods": methods(wanted.seconds),
        "stages": [stage.fields() for stage in findings.stages],
        "runs": [run.fields() for run in findings.runs],
        "peers": [other.fields() for other in findings.others.found],
        "absent": [asdict(absent) for absent in findings.others.absent],
        "memory": fields(findings.memory),
        "memory_is_flat": is_flat(findings.memory),
        "verdicts": [verdict.fields() for verdict in findings.verdicts],
        "failures": findings.failures,
    }


def way(found: Content) -> str:
    """Precision and decoder of a run or a verdict of a record; older ones are of decoding by the CPU alone."""
    return f"{found['precision']}, decoded by the GPU" if found.get("decode") == GPU else str(found["precision"])


def command(run: Content) -> str:
    """What a whole run is called in a table."""
    return "vgg16gpu infer" + " --decode gpu" * (run.get("decode") == GPU)


def _from_here(path: Path) -> str:
    """Without the current folder, which says nothing to a reader elsewhere."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
