"""`bench --pipeline`: the road from a folder of pictures to rows of a CSV."""

from __future__ import annotations

from collections.abc import Callable

from vgg16gpu.bench.pipeline.content import content
from vgg16gpu.bench.pipeline.session import run_pipeline
from vgg16gpu.bench.pipeline.wanted import COMPUTING_SECONDS, REPEATS, Wanted, Work
from vgg16gpu.cli import EXIT_CHECK_FAILED
from vgg16gpu.cli.bench.deliver import deliver
from vgg16gpu.cli.bench.options import Options
from vgg16gpu.cli.bench.pipeline_screen import print_pipeline
from vgg16gpu.cli.common.options import find_model
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.compiler.model import Model
from vgg16gpu.pictures.choices import CPU, GPU
from vgg16gpu.runtime.answers.codec_choice import decodes_on_device


def measure_pipeline(options: Options, say: Callable[[str], None]) -> int:
    """Measure, write and show. Returns the exit code: 1 where something of ours went wrong."""
    work = Work.of(_wanted(options))
    if GPU in work.wanted.decode:
        decodes_on_device(GPU, work.wanted.device, work.spec)  # or it says now why not
    findings = run_pipeline(work, say)
    for failure in findings.failures:
        tell(failure)
    result = content(work, findings)
    deliver(result, options, print_pipeline)
    return EXIT_CHECK_FAILED if findings.failures else 0


def _wanted(options: Options) -> Wanted:
    assert options.pipeline is not None  # or it would be another benchmark
    return Wanted(
        options.pipeline,
        Model(find_model(options.model)),
        options.device,
        options.precisions,
        options.kernels,
        options.size,
        max(options.batches, default=None),
        options.repeats or REPEATS,
        options.seconds or COMPUTING_SECONDS,
        options.against,
        options.memory,
        decode=options.decode or (CPU,),
    )
