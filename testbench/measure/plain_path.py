"""Time VGG16 by the three kernels of kernels/plain beside the engine, layer by layer, and compare the scores.

    python -m testbench.measure.plain_path MODEL.onnx [--device cuda|cpu] [--pictures N] [--output FILE]

MODEL is a VGG that examples/plain_vgg16.py reads. N structured pictures (default: the ten of testbench/references) are
computed one by one. Scores of both are judged against onnxruntime's by max|y - r| / max|r|; exit code 1 above 1e-5 for
the plain kernels or above the promise of the precision for the engine. Milliseconds are medians, between CUDA events:
plain layers of launches in a row, the engine's of each layer alone, both totals of a whole net.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from vgg16gpu.bench.measure.ceilings import measure_ceilings
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.measure.layers import EngineContender, LayerEffort, floors, measure_layers
from vgg16gpu.bench.measure.timing import Method
from vgg16gpu.bench.records.record import write
from vgg16gpu.checks.accuracy import SCORE_TOLERANCE, SCORE_TOLERANCES, score_error
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.testbench import STANDARD_INPUTS
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.io.normalize import default_mean, default_std
from vgg16gpu.io.synthetic import TESTBENCH_SEED, typical_inputs
from vgg16gpu.runtime.engine import Engine

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plain_vgg16.py"
PRECISIONS = ("fp32", "fp16")
RUNS = 50  # of the whole engine, for its median


def load_example() -> ModuleType:
    """Return examples/plain_vgg16.py as a module. Raises ImportError where it is missing."""
    spec = importlib.util.spec_from_file_location("plain_vgg16", EXAMPLE)
    if spec is None or spec.loader is None:
        raise ImportError(f"{EXAMPLE} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a row for each plain layer, and return 1 if scores are too far from onnxruntime's, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m testbench.measure.plain_path", description="The plain path, timed."
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--pictures", type=int, default=STANDARD_INPUTS)
    parser.add_argument("--output", type=Path, help="write what was measured as JSON")
    options = parser.parse_args(arguments)

    program = load_example()
    shape, layers = program.read_layers(options.model)
    pictures = typical_inputs(options.pictures, shape, default_mean(shape[0]), default_std(shape[0]), TESTBENCH_SEED)
    oracle = Oracle(options.model)
    references = np.concatenate([oracle.scores(picture[None]) for picture in pictures])

    network = program.Network(program.Cpu() if options.device == "cpu" else program.Gpu(), shape, layers)
    network.run(pictures[0])  # the first launch of a kernel takes longer
    runs = [network.run(np.ascontiguousarray(picture)) for picture in pictures]
    errors = score_error(np.stack([scores for scores, _ in runs]), references)
    medians = np.median([milliseconds for _, milliseconds in runs], axis=0)
    plain = {
        "errors": errors.tolist(),
        "ms": statistics.median(sum(milliseconds) for _, milliseconds in runs),
        "layers": [
            {"name": layer.name, "kernel": layer.kernel, "output": list(layer.shape), "ms": float(ms)}
            for layer, ms in zip(layers, medians, strict=True)
        ],
    }

    engines, where = {}, {}
    for precision in PRECISIONS:
        with Engine(options.model, device=options.device, precision=precision, batch=1) as engine:
            engines[precision] = measure_engine(engine, precision, pictures, references)
            where = environment(engine.device)
    passed = bool((errors <= SCORE_TOLERANCE).all()) and all(
        max(found["errors"]) <= SCORE_TOLERANCES[precision] for precision, found in engines.items()
    )
    if options.output:
        content = {"what": __doc__, "model": options.model.name, "passed": passed, "plain": plain, "engine": engines}
        write(options.output, {**content, "environment": where})
    show(plain, engines)
    return 0 if passed else 1


def measure_engine(engine: Engine, precision: str, pictures: Array, references: Array) -> dict[str, Any]:
    """Return the engine's errors on the pictures, the median ms of a run on the device, and of each layer alone."""
    contender = EngineContender(engine, pictures[:1], precision)
    scores = np.concatenate([np.asarray(engine.run(picture[None])) for picture in pictures])
    times = contender.measure(Method.ISOLATED, RUNS)
    floor = floors(measure_ceilings(engine.device), precision)
    layers = measure_layers(engine, engine.program, floor, LayerEffort(seconds=0.1))
    return {
        "errors": score_error(scores, references).tolist(),
        "ms": 1e3 * statistics.median(times),
        "layers": [
            {"label": layer.label, "kernel": layer.kernel, "names": list(layer.names), "ms": 1e3 * layer.median_s}
            for layer in layers
        ],
    }


def show(plain: dict[str, Any], engines: dict[str, Any]) -> None:
    """Print the plain layers with the engine's layer that computes the same value, and the totals."""
    print(f"{'kernel':14}{'output':>14}{'plain ms':>10}" + "".join(f"{precision:>10}" for precision in engines))
    told: set[tuple[str, int]] = set()
    for layer in plain["layers"]:
        cells = ""
        for precision, found in engines.items():
            index = next(i for i, other in enumerate(found["layers"]) if layer["name"] in other["names"])
            fresh = (precision, index) not in told  # an engine's layer may compute several plain ones
            told.add((precision, index))
            cells += f"{found['layers'][index]['ms']:10.4f}" if fresh else f"{'':>10}"
        print(f"{layer['kernel']:14}{'x'.join(map(str, layer['output'])):>14}{layer['ms']:10.3f}{cells}")
    totals = "".join(f"{found['ms']:10.4f}" for found in engines.values())
    worst = "".join(f"{max(found['errors']):10.1e}" for found in engines.values())
    print(f"{'whole net':28}{plain['ms']:10.3f}{totals}\n{'worst error':28}{max(plain['errors']):10.1e}{worst}")


if __name__ == "__main__":
    sys.exit(main())
