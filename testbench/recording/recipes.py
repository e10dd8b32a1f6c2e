"""What is run for which record. Expected seconds are those of one H200 with 16 cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from testbench.recording.machine import Card
from testbench.recording.photos import name_of
from testbench.recording.pictures import FIRST, LAST
from testbench.recording.steps import PYTHON, Recipe, Step
from vgg16gpu.bench.peers.base import PEERS
from vgg16gpu.compiler.choices import PRECISIONS
from vgg16gpu_lab.experiments.s5 import SEED as S5
from vgg16gpu_lab.variants import variants

SWEPT: Final = (224, 244, 320, 512)
SIZES: Final = (224, 244)  # the published network's own, and that of the published ladder
BESIDE_CUDNN: Final = {"S1": 255.0, "S2": 200.0}  # seconds; with cuDNN's front end, which builds every plan
EXPERIMENTS: Final = {"S3": 70.0, "S4": 95.0}
ASK_CUDNN: Final = ("S1", "S2", "S4")  # by its own front end: torch chooses slower plans
SERVER: Final = ("granian", "uvloop", "prometheus_client")
QUICK: Final = "digits"  # the model in place of VGG16
SMALLEST: Final = 32  # pixels of a VGG16
LONG: Final = {"calls": ("runtime/plans/test_flat_memory.py", 100), "steps": ("pytorch/test_changing_sizes.py", 280)}
GPU_TESTS: Final = ("tests/lab/exercises", "tests/lab/broken", "tests/lab/faults")


@dataclass(frozen=True)
class Settings:
    """Where to record, for which card, and where the records and everything else go (absolute paths).

    `quick`: a small model and few samples, to see that it works; what is recorded says nothing.
    """

    device: str
    card: Card
    output: Path
    work: Path
    quick: bool = False

    def model(self, size: int) -> Path | str:
        """The VGG16 of a size."""
        return QUICK if self.quick else self.work / f"vgg16-{size}.onnx"

    @property
    def precisions(self) -> tuple[str, ...]:
        """Those that are measured."""
        return PRECISIONS[:1] if self.quick else PRECISIONS

    @property
    def picture(self) -> Path:
        """One of the pictures that `made` makes."""
        return self.work / "pictures" / FIRST

    def record(self, name: str) -> Path:
        """A record that has the card in its name."""
        return self.output / f"{name.replace('CARD', self.card.name)}.json"


def program(module: str, *words: object) -> tuple[str, ...]:
    """Return the command line of a module."""
    return (PYTHON, "-m", module, *map(str, words))


def vgg16gpu(*words: object) -> tuple[str, ...]:
    """A command of the package."""
    return program("vgg16gpu", *words)


def made(settings: Settings, *sizes: int, scales: bool = True) -> list[Step]:
    """Pictures, and a VGG16 of each size with the scales of int8 beside it, unless nothing needs them."""
    folder = settings.picture.parent
    steps = [Step("pictures", (PYTHON, "testbench/recording/pictures.py", str(folder)), 3, once=folder / LAST)]
    for size in () if settings.quick else sizes:
        model = settings.model(size)
        calibrate = vgg16gpu("calibrate", model, "--images", folder, "--device", settings.device)
        make = vgg16gpu("model", "make", "--size", size, "--output", model)
        steps.append(Step(f"model-{size}", make, 6 if size < 448 else 30, once=Path(model)))
        if scales:
            steps.append(Step(f"scales-{size}", calibrate, 10, once=Path(f"{model}.int8.json")))
    return steps


def suite(settings: Settings) -> Recipe:
    """The tests of the GPU that run beside others, then the small ones of the kernels under both sanitizers."""
    found = tuple(settings.record(f"sanitize-{tool}-CARD") for tool in ("memcheck", "racecheck"))
    sanitizers = (PYTHON, "-m", "tests.sanitize.gpu", "--record", str(settings.record("sanitize-TOOL-CARD")))
    tests = _gpu_tests("tests", "gpu and not alone", 330, settings.record("tests-CARD"))
    return Recipe([tests, Step("sanitizers", sanitizers, 36, found)])


def suite_alone(settings: Settings) -> Recipe:
    """The tests of the GPU that run alone: the short ones, then memory over thousands of calls and of torch's steps."""
    steps = [_gpu_tests("alone", "gpu and alone and not slow", 100, settings.record("tests-CARD-alone"))]
    for name, (file, seconds) in LONG.items():
        record = settings.record(f"tests-CARD-{name}")
        steps.append(_gpu_tests(name, "gpu and alone and slow", seconds, record, f"tests/{file}"))
    return Recipe(steps)


def _gpu_tests(name: str, which: str, seconds: float, record: Path, file: str = "") -> Step:
    """file: those of it; empty: all that are so marked."""
    beside = () if "and alone" in which else ("-n", "auto", "--dist", "worksteal")
    files = (file,) if file else ()
    words = (*beside, "--require-gpu", "-m", which, "--record", record, *files)
    return Step(name, program("pytest", *words), seconds, (record,))


def bench(settings: Settings) -> Recipe:
    """The benchmark in every precision beside all peers; it says itself which of them are not installed."""
    record = settings.record("bench-CARD")
    against = () if settings.quick else ("--against", ",".join(PEERS))
    effort = ("--repeats", 3) if settings.quick else ("--seconds", 0.1, "--sustained", 2, "--cold-start")
    batches = ("--batch", "1,2" if settings.quick else "1,8,32,128")
    where = ("--device", settings.device, "--precision", ",".join(settings.precisions))
    words = (*where, *batches, *effort, *against, "--output", record, *_plot(record))
    command = vgg16gpu("bench", settings.model(224), *words)
    return Recipe([*made(settings, 224), Step("bench", command, 403, (record,))])


def sweep(settings: Settings, precision: str, sizes: Sequence[int]) -> Recipe:
    """Every batch from 1 to 16 at these sizes in one precision, beside the peers that are fastest there."""
    sizes = tuple(dict.fromkeys(sizes))
    steps = made(settings, *sizes, scales=precision == "int8")
    batches = ",".join(map(str, range(1, 3 if settings.quick else 17)))
    effort = ("--repeats", 3) if settings.quick else ("--seconds", 0.05, "--sustained", 0)
    against = () if settings.quick else ("--against", "torch,jax")
    for size in sizes:
        record = settings.record(f"sweep-CARD-{size}-{precision}")
        words = ("--device", settings.device, "--precision", precision, "--batch", batches, *effort, *against)
        steps.append(
            Step(record.stem, vgg16gpu("bench", settings.model(size), *words, "--output", record), 160, (record,))
        )
    return Recipe(steps)


def pipeline(settings: Settings) -> Recipe:
    """A folder to rows and to scales: on a GPU photographs and VGG16, torch beside it; on a CPU pictures of digits."""
    is_small = _is_small(settings)
    folder, photos = _photographs(settings, small_count=40 if settings.quick else 3000)
    steps, record = [photos], settings.record("pipeline-CARD")
    if not is_small:
        model = settings.model(SIZES[0])
        command = vgg16gpu("model", "make", "--size", SIZES[0], "--output", model)
        steps.append(Step(f"model-{SIZES[0]}", command, 6, once=Path(model)))
    model = QUICK if is_small else settings.model(SIZES[0])
    beside = () if is_small else ("--against", "torch", "--decode", "cpu,gpu")
    memory = "40,80" if settings.quick else "300,3000" if is_small else "1000,10000,100000"
    # A processor is shared with whoever else is there: its engine is timed for as long as a whole run nearly takes.
    effort = ("--repeats", 1, "--seconds", 0.1) if settings.quick else ("--seconds", 20) if is_small else ()
    where = ("--device", settings.device, "--precision", "fp32" if is_small else "fp16")
    words = ("--pictures", folder, *where, *beside, "--memory", memory, *effort, "--output", record)
    steps.append(Step("pipeline", program("testbench.pipeline", model, *words), 330, (record,)))
    few = ("--limit", 20, "--repeats", 1) if settings.quick else ()
    scales = settings.record("calibrate-CARD")
    images = ("--images", folder, "--device", settings.device, *few)
    return Recipe([*steps, _tool("testbench.measure.calibration", 20, scales, model, *images)])


def devices(settings: Settings) -> Recipe:
    """Several devices beside one: arrays in memory and a folder of photographs; shards by a pool and by Ray."""
    is_small = _is_small(settings)
    folder, model, steps = _of_photographs(settings)
    names = "cpu:2" if settings.device == "cpu" else "all"
    record, rates = settings.record("devices-CARD"), settings.record("jobs-CARD")
    effort = ("--repeats", 1, "--seconds", 0.2) if is_small else ("--repeats", 3, "--seconds", 2)
    words = ("--devices", names, "--precision", "fp32" if is_small else "fp16,int8", *effort, "--pictures", folder)
    command = program("testbench.pipeline", model, *words, "--output", record)
    steps.append(Step("devices", command, 220, (record,)))
    shard = ("--precision", "fp32", "--shard-size", 40) if is_small else ()
    where = ("--pictures", folder, "--devices", names, *shard)
    return Recipe([*steps, _tool("testbench.measure.job_rate", 180, rates, model, *where, needs=("ray", "pyarrow"))])


def lab_a(settings: Settings) -> Recipe:
    """The two experiments that ask cuDNN most often."""
    return Recipe([_experiment(settings, name, seconds) for name, seconds in BESIDE_CUDNN.items()])


def lab_b(settings: Settings) -> Recipe:
    """Two more, and the ladder at both sizes."""
    steps = [_experiment(settings, name, seconds) for name, seconds in EXPERIMENTS.items()]
    for size, name in zip(SIZES, ("ladder-CARD", "ladder-CARD-244"), strict=True):
        record = settings.record(name)
        climb = vgg16gpu("ladder", settings.model(size), "--device", settings.device, "--output", record)
        rungs = ("--rungs", "A,H") if settings.quick else ()
        drawn = _plot(record) if size == SIZES[0] else ()
        steps.append(Step(f"ladder-{size}", (*climb, *rungs, *drawn), 42, (record,)))
    return Recipe([*made(settings, *SIZES), *steps])


def lab_c(settings: Settings) -> Recipe:
    """What the kernels take, the tests of wrong ones, the last experiment, and what a profiler reads of each kernel."""
    usage = settings.output / "lab" / f"usage-{settings.card.arch}.json"
    tests = settings.work / "tests-lab.json"  # no record of its own: `suite` runs these, too
    pytest = (
        PYTHON,
        "-m",
        "pytest",
        "-n",
        "auto",
        "-m",
        "gpu",
        "--require-gpu",
        "--record",
        str(tests),
        *GPU_TESTS,
    )
    return Recipe(
        [
            Step("usage", vgg16gpu("lab", "list", "--kernels", "--json"), 15, (usage,), stdout=usage),
            Step("lab-tests", pytest, 40, (tests,)),
            _experiment(settings, S5, 360.0),
            *(_profile(settings, variant.name) for variant in variants()),
        ]
    )


def lab_claims(settings: Settings) -> Recipe:
    """The verdicts on the claims, from the records of all parts; it needs no GPU."""
    folder, name = settings.output / "lab", settings.record("ladder-CARD").name
    found = [path for path in sorted(settings.output.glob("ladder-*.json")) if not path.stem.endswith(f"-{SIZES[1]}")]
    ladder = next((path for path in found if path.name == name), found[0] if len(found) == 1 else None)
    command = vgg16gpu("lab", "claims", "--records", folder, *(("--ladder", ladder) if ladder else ()))
    return Recipe([Step("claims", command, 10, (folder / "claims.json", folder / "claims.csv"))])


def _plot(record: Path) -> tuple[str, ...]:
    """The picture that lies beside a record, where it can be drawn."""
    return ("--plot", str(record.with_suffix(".png"))) if find_spec("matplotlib") else ()


def _experiment(settings: Settings, name: str, seconds: float) -> Step:
    folder = settings.output / "lab"
    quick = ("--quick",) if settings.quick else ()
    command = vgg16gpu("lab", "run", name, "--device", settings.device, "--output", folder, *quick)
    needs = ("cudnn",) if name in ASK_CUDNN and not settings.quick else ()
    return Step(name, command, seconds, (folder / f"{name}.json",), needs=needs)


def _profile(settings: Settings, name: str) -> Step:
    record = settings.output / "lab" / f"profile-{name}.json"
    command = vgg16gpu("lab", "profile", name, "--device", settings.device, "--output", record)
    return Step(f"profile-{name}", command, 5, (record,))


def promises(settings: Settings, photographs: Path | None) -> Recipe:
    """Scores, errors of layers, ONNX's suite, what is added around the kernels, and the promises under stress."""
    device, digits = ("--device", settings.device), settings.quick
    steps = made(settings, *SIZES)
    more = ("--layers", "--iterations", "1,5" if settings.device == "cpu" else "1,5,500")  # docs show these times
    for name, model in (
        ("testbench-digits-CARD", (QUICK,)),
        *(() if digits else (("testbench-CARD", (settings.model(244), *more)),)),
    ):
        for precision in settings.precisions:
            record = settings.record(name if precision == PRECISIONS[0] else f"{name}-{precision}")
            words = ("testbench", *model, *device, "--precision", precision, "--output", record)
            steps.append(Step(record.stem, vgg16gpu(*words), 12, (record,)))
    suite_record = settings.record("conformance-CARD")
    kind = "CPU" if settings.device == "cpu" else "CUDA"
    steps.append(_tool("tests.conformance.suite", 20, suite_record, "--device", kind))
    if settings.quick:
        return Recipe(steps)
    model = settings.model(224)
    steps.append(_tool("testbench.measure.host_path", 90, settings.record("host-path-CARD"), model, *device))
    steps.append(_tool("testbench.measure.plain_path", 30, settings.record("plain-CARD"), model, *device))
    for batch in (1, 8, 32):
        record = settings.record(f"layer-errors-CARD-b{batch}")
        steps.append(_tool("testbench.measure.layer_errors", 25, record, model, "--batch", batch, needs=("torch",)))
    images = ("--images", photographs) if photographs else ()
    steps.append(
        _tool("tests.stress.promises", 110, settings.record("stress-CARD"), model, *device, *images, needs=("torch",))
    )
    return Recipe(steps)


def decode(settings: Settings, photographs: Path | None) -> Recipe:
    """JPEG decoded on the GPU beside the CPU: how fast, and how far the pixels and the scores are apart."""
    record = settings.record("decode-CARD")
    images = ("--photographs", photographs) if photographs else ()
    less = ("--count", 200, "--compared", 100) if settings.quick else ()
    words = (*images, *less, "--device", settings.device)
    return Recipe([_tool("testbench.measure.decode_gpu", 150, record, *words, needs=("nvidia",))])


def perceptual(settings: Settings) -> Recipe:
    """Features and perceptual losses on torch's tensors, beside torch and JAX; 300 steps on a loss, beside torch's."""
    less = ("--case", "1x32", "--precision", "bf16", "--sustained", 0, "--peers", "torch") if settings.quick else ()
    model, make = _compared(settings)
    words = (model, "--device", settings.device, *less)
    record = settings.record("perceptual-CARD")
    needs = ("torch",) if settings.quick else ("torch", "jax")
    steps = [*made(settings), make, _tool("testbench.measure.perceptual", 260, record, *words, needs=needs)]
    drawn = settings.output / "optimise.png"
    optimised = (model, settings.picture, "--device", settings.device, "--drawn", drawn)
    if not settings.quick:
        record = settings.record("optimise-CARD")
        steps.append(_tool("testbench.measure.optimise", 20, record, *optimised, needs=("torch",)))
        record = settings.record("gradient-errors-CARD")
        whole = (model, "--device", settings.device)
        steps.append(_tool("testbench.measure.gradient_errors", 20, record, *whole, needs=("torch",)))
    return Recipe(steps)


def lpips(settings: Settings) -> Recipe:
    """A step of LPIPS with its gradient and a fresh target, and its memory, beside torch's own ways."""
    less = ("--case", "1x32", "--ways", "ours,torch") if _is_small(settings) else ()
    model, make = _compared(settings)
    words = (model, "--device", settings.device, *less)
    steps = _tool("testbench.measure.lpips_step", 240, settings.record("lpips-CARD"), *words, needs=("torch",))
    few = ("--pairs", 2, "--size", 32) if _is_small(settings) else ()
    named = settings.record("lpips-digits-CARD")
    digits = _tool(
        "testbench.measure.lpips_digits", 60, named, model, "--device", settings.device, *few, needs=("torch",)
    )
    return Recipe([make, steps, digits])


def _compared(settings: Settings) -> tuple[Path, Step]:
    """The network whose layers are compared, and what makes it; the digits' net has not all of them."""
    size = SMALLEST if settings.quick else SIZES[0]
    model = settings.work / f"vgg16-{size}.onnx"
    make = vgg16gpu("model", "make", "--size", size, "--output", model)
    return model, Step(f"model-{size}", make, 6, once=model)


def public_api(settings: Settings) -> Recipe:
    """`Engine.run` on torch's tensors: as a CUDA graph, enqueued, waited for."""
    less = ("--precision", PRECISIONS[0], "--batch", "1,2") if _is_small(settings) else ()
    words = (settings.model(224), "--device", settings.device, *less)
    record = settings.record("public-api-CARD")
    return Recipe([*made(settings, 224), _tool("testbench.measure.public_api", 70, record, *words, needs=("torch",))])


def server(settings: Settings) -> Recipe:
    """A server beside the pipeline that it is built on; JPEG by the CPU and by the GPU; FastAPI and torch beside it."""
    is_small = _is_small(settings)
    folder, model, steps = _of_photographs(settings, scales=False)
    record = settings.record("server-CARD")
    effort: tuple[object, ...] = ("--precision", "fp32", "--seconds", 0.5, "--clients", "1,4,64")
    if not is_small:
        by_gpu = ("--decode-gpu",) if find_spec("nvidia") else ()
        effort = ("--plot", record.with_suffix(".png"), "--against", "fastapi", *by_gpu)
    words = (model, "--pictures", folder, "--device", settings.device, *effort)
    needs = (*SERVER, *(() if is_small else ("fastapi", "uvicorn", "torch")))
    return Recipe([*steps, _tool("testbench.measure.serving", 260, record, *words, needs=needs)])


def server_faults(settings: Settings) -> Recipe:
    """A server whose processes are killed, and that is asked for three times its capacity."""
    return _under_faults(settings, "server-faults-CARD", 110, 60, 0)


def server_soak(settings: Settings) -> Recipe:
    """The same for a shorter time, then eight minutes at half of its capacity."""
    return _under_faults(settings, "server-soak-CARD", 515, 6, 480)


def _under_faults(settings: Settings, name: str, expected: float, seconds: float, soak: float) -> Recipe:
    is_small = _is_small(settings)
    folder, model, steps = _of_photographs(settings, count=64, scales=False)
    precision = ("--precision", "fp32") if is_small else ()
    lengths = ("--seconds", 9 if is_small else seconds, "--soak", min(soak, 5) if is_small else soak)
    words = (model, "--pictures", folder, "--device", settings.device, *precision, *lengths)
    record = settings.record(name)
    return Recipe([*steps, _tool("testbench.measure.serving_faults", expected, record, *words, needs=SERVER)])


def _is_small(settings: Settings) -> bool:
    """Whether a few pictures of digits stand for photographs."""
    return settings.quick or settings.device == "cpu"


def _of_photographs(
    settings: Settings, count: int = 6400, *, scales: bool = True
) -> tuple[Path, Path | str, list[Step]]:
    """A folder of so many of them, a model that takes them, and what makes both; scales: those of int8, too."""
    folder, photos = _photographs(settings, count=count)
    if _is_small(settings):
        return folder, QUICK, [photos]
    return folder, settings.model(SIZES[0]), [photos, *made(settings, SIZES[0], scales=scales)]


def _photographs(settings: Settings, small_count: int = 40, count: int = 6400) -> tuple[Path, Step]:
    """A folder of them, and what makes it; small_count: where small ones do."""
    is_small = _is_small(settings)
    count, size = (small_count, "96x72") if is_small else (count, "500x375")
    folder = settings.work / f"photos-{size}-{count}"
    script = (PYTHON, "testbench/recording/photos.py", str(folder), "--count", str(count), "--size", size)
    photos = (*script, "--kilobytes", *(("2", "4", "--grey") if is_small else ("42", "60")))
    return folder, Step("photos", photos, 20, once=folder / name_of(count - 1))


def _tool(module: str, seconds: float, record: Path, *words: object, needs: tuple[str, ...] = ()) -> Step:
    """Return the step that runs a program of this checkout."""
    command = program(module, *words, "--output", record)
    return Step(record.stem, command, seconds, (record,), needs=needs)
