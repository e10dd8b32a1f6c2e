"""Make the records that need a GPU, a part at a time, each within one call of ten minutes.

    python testbench/record.py suite          the GPU tests, and the small ones under both sanitizers       (370 s)
    python testbench/record.py suite-alone    the GPU tests that nothing may run beside                     (480 s)
    python testbench/record.py bench          the benchmark, four precisions, all peers that are installed   (420 s)
    python testbench/record.py sweep fp16 224 batches 1 to 16 at this size, or several; torch, JAX        (170 s each)
    python testbench/record.py pipeline  a folder of pictures to rows, torch beside; --device cpu: digits (330 s)
    python testbench/record.py devices        several GPUs beside one, shards by a pool and by Ray           (430 s)
    python testbench/record.py server         requests over HTTP, the pipeline, FastAPI with torch    (280 s)
    python testbench/record.py server-faults  a server whose processes are killed, at three times its capacity (150 s)
    python testbench/record.py server-soak    a server under load for eight minutes                          (550 s)
    python testbench/record.py lab a          S1 and S2, with cuDNN's front end                              (455 s)
    python testbench/record.py lab b          S3 and S4, the ladder at 224 and 244 pixels                    (285 s)
    python testbench/record.py lab c          what kernels take, tests of wrong ones, S5, a profile of each  (560 s)
    python testbench/record.py lab claims     the verdicts on the claims, where all parts lie; no GPU        (10 s)
    python testbench/record.py promises       scores, layers, ONNX's suite, host time, stress                (400 s)
    python testbench/record.py decode         JPEG decoded on the GPU: speed, pixels, scores                 (150 s)
    python testbench/record.py perceptual     features and losses on torch's tensors, torch and JAX beside   (290 s)
    python testbench/record.py lpips          a step of LPIPS with its gradient, and its memory, torch beside (250 s)
    python testbench/record.py public-api     Engine.run on torch's tensors: graph, enqueued, waited for      (90 s)
    python testbench/record.py first-command --packages DIR   clone, make demo, make test                    (350 s)
    python testbench/record.py compare OTHER  this checkout by another one, in turns A B B A                 (430 s)
    python testbench/record.py starts OTHER   the start of infer in both, in pairs                           (120 s)

Records go to --output, as they are called in testbench/results. What a command prints goes to a log, whose end is shown
when it fails; the last thing printed is a table. --dry-run shows the commands and their seconds. A step that does not
fit into what is left of --limit seconds is left out: make it with another call, --only NAME. Exit code 1 when a step
failed or was left out, though what came before it is recorded.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))  # the packages of this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serving"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from testbench.recording import machine, recipes
from testbench.recording.compare import compare
from testbench.recording.first_command import CLONE, clear, first_command
from testbench.recording.pairs import starts
from testbench.recording.says import says
from testbench.recording.steps import ROOT, Ended, Recipe, run_all, table
from vgg16gpu.bench.measure.environment import commit
from vgg16gpu.compiler.choices import PRECISIONS
from vgg16gpu.errors import Error

LIMIT: Final = 570.0  # seconds; a machine that is borrowed often gives ten minutes to a command
LAB: Final = {"a": recipes.lab_a, "b": recipes.lab_b, "c": recipes.lab_c, "claims": recipes.lab_claims}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a part, or show it; 1 if something failed or was left out, 2 if nothing can be recorded here."""
    options = _options(arguments)
    try:
        settings = _settings(options)
        recipe = _chosen(_recipe(options, settings), options.only)
    except Error as error:
        print(f"record.py: {error}", file=sys.stderr)
        return 2
    if options.dry_run:
        for step in recipe.steps:
            print(f"{step.seconds:6.0f} s  {step.shown()}")
        print(f"{sum(step.seconds for step in recipe.steps):6.0f} s in all, without what is not installed")
        return 0
    if (own := commit(ROOT)) and own["dirty"]:
        print("Tracked files differ from the commit, and the records will say so: commit first.")
    if any(step.name == CLONE for step in recipe.steps):
        clear(settings)
    settings.output.mkdir(parents=True, exist_ok=True)
    ended = run_all(recipe.steps, options.limit, settings.work / "logs")
    return _finish(recipe, ended, options)


def _finish(recipe: Recipe, ended: Sequence[Ended], options: argparse.Namespace) -> int:
    """The last records, the archive, the table."""
    code, written = int(not all(each.is_well for each in ended)), list[Path]()
    if recipe.finish:
        try:
            written += recipe.finish({each.step.name: each for each in ended})
        except (Error, OSError, ValueError, KeyError) as error:
            print(f"no record was made of these steps: {type(error).__name__}: {error}")
        if not written:
            print("The record of all steps together was not made: it needs them in one call.")
            code = 1
    if options.archive:
        with tarfile.open(options.archive, "w:gz") as archive:
            archive.add(options.output, arcname=".")
    print(table(ended))
    for path in written:
        print(f"{path.name}: {says(path)}")
    print(f"Records: {options.archive or options.output}; unpacked they lie over testbench/results.")
    return code


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="testbench/record.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--output", type=Path, default=Path("build/records"), metavar="DIR", help="for the records")
    shared.add_argument("--archive", type=Path, metavar="FILE", help="also pack DIR into a .tar.gz")
    shared.add_argument("--work", type=Path, metavar="DIR", help="for models, pictures and logs; default: in /tmp")
    shared.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    shared.add_argument("--quick", action="store_true", help="digits and few samples: to see that it works")
    shared.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="of everything together")
    shared.add_argument("--only", nargs="+", metavar="STEP", help="these steps, and what they need was made before")
    shared.add_argument("--dry-run", action="store_true", help="show the commands and their seconds")
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name in (
        "suite",
        "suite-alone",
        "bench",
        "pipeline",
        "devices",
        "server",
        "server-faults",
        "server-soak",
        "perceptual",
        "lpips",
        "public-api",
    ):
        parts.add_parser(name, parents=[shared])
    swept = parts.add_parser("sweep", parents=[shared])
    swept.add_argument("precision", choices=PRECISIONS)
    swept.add_argument("sizes", nargs="+", type=int, choices=recipes.SWEPT, metavar="SIZE", help="%(choices)s")
    parts.add_parser("lab", parents=[shared]).add_argument("which", choices=tuple(LAB))
    for name, use in (("promises", "for the rate of second passes"), ("decode", "what the pictures are crops of")):
        with_photographs = parts.add_parser(name, parents=[shared])
        with_photographs.add_argument("--photographs", type=Path, metavar="DIR", help=use)
    newcomer = parts.add_parser("first-command", parents=[shared])
    newcomer.add_argument("--packages", type=Path, metavar="DIR", help="wheels of all that is installed")
    paired = parts.add_parser("starts", parents=[shared])
    paired.add_argument("--pairs", type=int, default=40, help="of processes")
    turns = parts.add_parser("compare", parents=[shared])
    for with_other in (turns, paired):
        with_other.add_argument("other", type=Path, help="the folder of another checkout")
    turns.add_argument("--rounds", type=int, default=2, help="of four turns each")
    turns.add_argument("--batch", default="1,8,32,128", metavar="NUMBERS", help="images per run")
    turns.add_argument("--precision", nargs="+", choices=PRECISIONS, help="these; the record has them in its name")
    turns.add_argument("--within", type=float, default=1.0, metavar="PERCENT", help="what counts as the same")
    return parser.parse_args(arguments)


def _settings(options: argparse.Namespace) -> recipes.Settings:
    """Raises Error where there is no card to record on."""
    card = machine.CPU if options.device == "cpu" else machine.find_card()
    needs_none = options.dry_run or (options.part == "lab" and options.which == "claims")
    if card is None and not needs_none:
        raise Error("no GPU: nvidia-smi names none; run this beside one, or try --device cpu --quick")
    own = commit(ROOT)
    named = Path(tempfile.gettempdir(), f"vgg16gpu-recording-{own['hash'][:12] if own else 'copy'}")
    work: Path = options.work or named
    return recipes.Settings(
        options.device, card or machine.NONE, options.output.resolve(), work.resolve(), quick=options.quick
    )


def _recipe(options: argparse.Namespace, settings: recipes.Settings) -> Recipe:
    """Raises Error for folders that are not what they should be."""
    if options.part == "lab":
        return LAB[options.which](settings)
    if options.part in ("promises", "decode"):
        recipe = recipes.promises if options.part == "promises" else recipes.decode
        return recipe(settings, options.photographs and options.photographs.resolve())
    if options.part == "first-command":
        if not options.packages and not options.dry_run:
            raise Error("first-command needs --packages DIR: wheels of what is installed (pip download makes it)")
        return first_command(settings, options.packages and options.packages.resolve())
    if options.part in ("compare", "starts"):
        if not (options.other / "vgg16gpu" / "__init__.py").is_file():
            raise Error(f"'{options.other}' is no checkout: it has no vgg16gpu/__init__.py; name its folder")
        other = options.other.resolve()
        if options.part == "starts":
            return starts(settings, other, options.pairs)
        return compare(settings, other, options.rounds, options.within / 100, options.batch, options.precision)
    if options.part == "sweep":
        return recipes.sweep(settings, options.precision, options.sizes)
    whole = {
        "suite": recipes.suite,
        "suite-alone": recipes.suite_alone,
        "bench": recipes.bench,
        "pipeline": recipes.pipeline,
        "devices": recipes.devices,
        "server": recipes.server,
        "server-faults": recipes.server_faults,
        "server-soak": recipes.server_soak,
        "perceptual": recipes.perceptual,
        "lpips": recipes.lpips,
        "public-api": recipes.public_api,
    }
    return whole[options.part](settings)


def _chosen(recipe: Recipe, only: Sequence[str] | None) -> Recipe:
    """Raises Error for a name that no step has."""
    names = [step.name for step in recipe.steps]
    if unknown := [name for name in only or () if name not in names]:
        raise Error(f"there is no step {', '.join(unknown)}; there are: {', '.join(names)}")
    return Recipe([step for step in recipe.steps if step.name in (only or names)], recipe.finish)


if __name__ == "__main__":
    sys.exit(main())
