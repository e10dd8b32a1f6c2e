"""JPEG decoded on the GPU: how fast, whether to the CPU's pixels, and what that does to scores.

    python -m testbench.measure.decode_gpu [MODEL.onnx] [--photographs DIR] [--output FILE]

Needs a GPU and nvJPEG (`pip install '.[decode-gpu]'`). Its parts; one that fails leaves the others:

- alone: decoders on files in pinned memory, images/s by backend, files of a call and decoders; seconds to make them;
- settings: `infer` inside of one process, without its start: slots, decoders, threads that read; and decoding by the
  CPU, by how long a thread waits for the interpreter;
- infer: `vgg16gpu infer FOLDER --decode gpu` and `cpu`, whole processes in fp16, twice each: equal rows?
- scores: of both decoders in fp32 and fp16, beside what fp16 itself changes;
- pixels: after decoding, against libjpeg's, by subsampling of colours.

Without MODEL a VGG16 is made; without DIR the photographs are those that packages here bring.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import numpy.typing as npt
from PIL import Image

import vgg16gpu
from testbench.measure import decode_photos
from testbench.measure.decode_block import Block, Made
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import Opened, open_codec, open_device
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cuda import nvjpeg
from vgg16gpu.devices.cuda.nvjpeg import DecodeBackend, NvJpegDecoder, load_nvjpeg
from vgg16gpu.io.normalize import Pixels
from vgg16gpu.pictures.inputs import spec_of
from vgg16gpu.pictures.listing import list_files
from vgg16gpu.runtime.answers import decoding
from vgg16gpu.runtime.answers import folder as folder_module
from vgg16gpu.runtime.answers.folder import FilePipeline
from vgg16gpu.runtime.answers.rows import Ranking
from vgg16gpu.runtime.engine import Engine

COUNT, COMPARED, BUDGET = 6400, 2000, 150.0  # pictures, and seconds of all parts together
ROUND: Final = 1024  # files that are decoded for one rate
CALLS: Final = ((64, 1), (64, 2), (64, 3), (128, 1), (128, 2), (256, 1))  # files of a call, decoders side by side
PIXELS: Final = 300  # pictures whose pixels are compared
SETTINGS: Final = (  # rows of a slot, decoders, threads that read (None: as many as `infer` takes)
    *((rows, 1, None) for rows in (32, 64, 128, 256)),
    *((128, decoders, None) for decoders in (2, 3)),
    *((128, 1, workers) for workers in (2, 4, 8)),
)
SWITCHING: Final = (2e-5, 1e-4, 3e-4, 1e-3, 5e-3)  # seconds


@dataclass(frozen=True)
class Where:
    """Where all this happens."""

    device: str
    model: Path
    folder: Path
    count: int
    compared: int
    deadline: float

    @property
    def files(self) -> list[Path]:
        """The photographs."""
        return sorted(self.folder.glob("*.jpg"))

    def require_time(self, seconds: float = 0.0) -> None:
        """Raise TimeoutError where less is left."""
        if time.monotonic() + seconds > self.deadline:
            raise TimeoutError("no time left; give --budget more seconds")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table; 1 if a part failed."""
    options = _options(arguments)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgg16gpu-decode-")))
        deadline = time.monotonic() + options.budget
        content: dict[str, Any] = {"what": __doc__, "failures": {}}
        folder, model = work / "photographs", options.model or work / "vgg16.onnx"
        sources = decode_photos.photographs(options.photographs)
        content["pictures"] = decode_photos.make(folder, sources, options.count)
        if options.model is None:
            run("model", "make", "--output", str(model))
        where = Where(options.device, Path(model), folder, options.count, options.compared, deadline)
        for name, part in PARTS.items():
            _say(f"{name}, {deadline - time.monotonic():.0f} s left")
            start = time.perf_counter()
            try:
                content[name] = part(where)
            except Exception as error:
                content["failures"][name] = traceback.format_exc()
                _say(f"{name} failed: {type(error).__name__}: {error}")
            content.setdefault("seconds", {})[name] = time.perf_counter() - start
            if options.output:  # what there is so far, whatever happens to the next part
                write(options.output, content)
    _show(content)
    return int(bool(content["failures"]))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m testbench.measure.decode_gpu", description="JPEG decoded on the GPU, and on the CPU beside it."
    )
    parser.add_argument("model", nargs="?", type=Path, help="default: a VGG16 is made")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--photographs", type=Path, metavar="DIR", help="what the pictures are crops of")
    parser.add_argument("--count", type=int, default=COUNT, help="pictures")
    parser.add_argument("--compared", type=int, default=COMPARED, help="of these, pixel by pixel and score by score")
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="SECONDS", help="of all parts together")
    parser.add_argument("--output", type=Path, help="write what was measured as JSON")
    return parser.parse_args(arguments)


# ---- Parts


def _environment(where: Where) -> dict[str, Any]:
    with _opened(where) as device:
        return {"decoder": open_codec(device).name, **environment(device)}


def _alone(where: Where) -> list[dict[str, Any]]:
    """Rates of decoders, by themselves."""
    found: list[dict[str, Any]] = []
    with _opened(where) as device:
        block = Block(device, [path.read_bytes() for path in where.files[:ROUND]])
        for way in nvjpeg.WAYS:
            for batch, many in CALLS:
                where.require_time(80)  # for the other parts
                case = {"way": way.name, "batch": batch, "decoders": many}
                try:
                    found.append({**case, **block.rate(partial(_decoder, device, way), batch, many)})
                except Exception as error:
                    found.append({**case, "error": str(error)})
        block.close()
    return found


def _infer(where: Where) -> dict[str, Any]:
    """Whole processes."""
    found: dict[str, Any] = {}
    rows: dict[str, list[str]] = {}
    few = where.folder.parent / "few"
    few.mkdir(exist_ok=True)
    for path in where.files[:64]:
        (few / path.name).write_bytes(path.read_bytes())
    _process(where, few, "gpu")  # kernels are compiled
    for decode in ("gpu", "cpu", "gpu", "cpu"):
        where.require_time(10)
        told = _process(where, where.folder, decode)
        rows.setdefault(decode, []).append(told.pop("rows_sha256"))
        found.setdefault(decode, []).append(told)
    found["equal_rows_of_two_runs"] = {decode: len(set(each)) == 1 for decode, each in rows.items()}
    return found


def _process(where: Where, folder: Path, decode: str) -> dict[str, Any]:
    output = where.folder.parent / f"{decode}.csv"
    options = ["--model", str(where.model), "--device", where.device, "--precision", "fp16", "--decode", decode]
    start = time.perf_counter()
    told = json.loads(run("infer", str(folder), *options, "--output", str(output), "--json"))
    seconds = time.perf_counter() - start
    count = len(list(folder.iterdir()))
    return {
        "seconds": seconds,
        "images_per_s_of_the_process": count / seconds,
        "images_per_s_first_row_to_last": told["rates"]["inputs_per_s"],
        "decode": told["decode"],
        "stages": told["stages"],
        "rows_sha256": hashlib.sha256(output.read_bytes()).hexdigest(),
    }


def _settings(where: Where) -> dict[str, Any]:
    """Rates inside of one process, its engine built."""
    on_gpu, on_cpu = [], []
    with _opened(where) as device, _engine(where, device) as engine:
        _rate(engine, where)
        for seconds in SWITCHING:
            where.require_time(60)  # for what comes behind
            with mock.patch.object(folder_module, "SWITCHING", seconds):
                on_cpu.append({"switching_s": seconds, "images_per_s": _rate(engine, where)})
        for rows, decoders, workers in SETTINGS:
            where.require_time(50)
            rate = _rate(engine, where, (rows, decoders), workers)
            on_gpu.append({"rows": rows, "decoders": decoders, "workers": workers, "images_per_s": rate})
    return {"by the CPU": on_cpu, "on the GPU": on_gpu}


def _rate(engine: Engine, where: Where, on_gpu: tuple[int, int] | None = None, workers: int | None = None) -> float:
    """Images a second from the first rows to the last; from the beginning where all come at once.

    on_gpu: rows of a slot and decoders, where the GPU decodes.
    """
    preprocess = engine.model.preprocess(engine.graph, engine.program.input.shape)
    spec = spec_of(engine.graph.input, engine.program.input.shape[1:], preprocess)
    width, height = decode_photos.SIZE
    rows, decoders = on_gpu or (decoding.ROWS, decoding.DECODERS)
    room = max(decoding.ROOM_NBYTES, (rows + 1) * width * height * 3)
    codec = open_codec(engine.device) if on_gpu else None
    with (
        mock.patch.multiple(decoding, ROWS=rows, DECODERS=decoders, ROOM_NBYTES=room),
        FilePipeline(list_files([where.folder]), spec, workers, decodes_on_device=bool(on_gpu)) as folder,
        folder.answers(engine, Ranking(5), codec=codec) as stream,
    ):
        answers, begun = iter(stream), time.perf_counter()
        first, start = next(answers), time.perf_counter()
        if count := sum(len(each.names) for each in answers):
            return count / (time.perf_counter() - start)
        return len(first.names) / (start - begun)


def _pixels(where: Where) -> dict[str, Any]:
    """Differences after decoding, of 255."""
    found: dict[str, Any] = {}
    files = where.files[: min(PIXELS, where.compared, where.count)]
    wanted = []
    for path in files:
        with Image.open(path) as picture:
            wanted.append(np.asarray(picture))
    with _opened(where) as device:
        block = Block(device, [path.read_bytes() for path in files])
        for way in nvjpeg.WAYS:
            where.require_time(3)
            found[way.name] = _compared(block, partial(_decoder, device, way), wanted)
        block.close()
    return found


def _compared(block: Block, made: Made, wanted: Sequence[Pixels]) -> dict[str, Any]:
    try:
        return _differences(block.pixels(made), wanted)
    except Exception as error:
        return {"error": str(error)}


def _differences(found: Iterable[Pixels | None], wanted: Sequence[Pixels]) -> dict[str, Any]:
    """By subsampling; of each picture three numbers are kept."""
    by: dict[str, list[tuple[float, float, int]]] = {}
    refused = 0
    for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        if ours is None:
            refused += 1
            continue
        counts = np.bincount(np.abs(ours.astype(np.int16) - theirs).reshape(-1))
        mean = float(counts @ np.arange(len(counts)) / counts.sum())
        kind = decode_photos.subsampling(number)
        by.setdefault(kind, []).append((float(counts[0] / counts.sum()), mean, len(counts) - 1))
    return {
        "refused": refused,
        **{
            kind: {
                "pictures": len(each),
                "equal_share": float(np.mean([equal for equal, _, _ in each])),
                "mean": float(np.mean([mean for _, mean, _ in each])),
                "largest_mean": max(mean for _, mean, _ in each),
                "max": max(most for _, _, most in each),
            }
            for kind, each in by.items()
        },
    }


def _scores(where: Where) -> dict[str, Any]:
    """What becomes of the answers."""
    files = where.files[: where.compared]
    found = {}
    scores = {}
    for precision in ("fp32", "fp16"):
        for decode in ("cpu", "gpu"):
            where.require_time(5)
            answers = vgg16gpu.classify(
                files, where.model, device=where.device, precision=precision, decode=decode, batch=_batch(where)
            )
            scores[precision, decode] = np.stack([answer.scores for answer in answers])
        found[f"{precision}: gpu against cpu"] = _changes(scores[precision, "gpu"], scores[precision, "cpu"])
    found["decoded by the CPU: fp16 against fp32"] = _changes(scores["fp16", "cpu"], scores["fp32", "cpu"])
    return found


def _changes(found: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> dict[str, float]:
    """Differences relative to the largest score of each picture, and how many best classes are others."""
    relative = np.abs(found - wanted).max(axis=1) / np.abs(wanted).max(axis=1)
    top = [np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :5], axis=1) for scores in (found, wanted)]
    return {
        "pictures": len(found),
        "max_relative": float(relative.max()),
        "mean_relative": float(relative.mean()),
        "max_absolute": float(np.abs(found - wanted).max()),
        "top_1_changed": int((found.argmax(axis=1) != wanted.argmax(axis=1)).sum()),
        "top_5_changed": int((top[0] != top[1]).any(axis=1).sum()),
    }


PARTS: Final[dict[str, Callable[[Where], Any]]] = {
    "environment": _environment,
    "alone": _alone,
    "settings": _settings,
    "infer": _infer,
    "scores": _scores,
    "pixels": _pixels,
}


# ---- Tools


def run(*words: str) -> str:
    """What a command of the package prints. Raises RuntimeError when it fails."""
    done = subprocess.run([sys.executable, "-m", "vgg16gpu", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout


def _decoder(device: Device, way: DecodeBackend) -> NvJpegDecoder:
    assert device.foreign  # a card's
    return NvJpegDecoder(load_nvjpeg(), device.foreign, way)


@contextmanager
def _opened(where: Where) -> Iterator[Device]:
    opened = open_device(where.device)
    with closing(opened.device):
        yield opened.device


def _engine(where: Where, device: Device) -> Engine:
    return Engine(Model(where.model), device=Opened(device, ""), precision="fp16", batch=_batch(where))


def _batch(where: Where) -> int:
    return 8 if where.device == "cpu" else 128


def _say(line: str) -> None:
    print(line, flush=True)


def _show(content: dict[str, Any]) -> None:
    """What matters of it, in a few lines."""
    _say(f"\n{content['pictures']['count']} pictures, {content['pictures']['mean_nbytes'] / 1e3:.1f} KB each")
    _say(f"decoder: {content.get('environment', {}).get('decoder')}")
    infer = content.get("infer", {})
    for decode in ("gpu", "cpu"):
        for told in infer.get(decode, ()):
            first = told["images_per_s_first_row_to_last"]
            _say(
                f"infer --decode {decode}: {told['images_per_s_of_the_process']:,.0f} images/s of the process, "
                f"{first:,.0f} from the first row to the last; by {told['decode']['by']}: {told['decode']['gpu']:,}; "
                f"shares {_rounded(told['stages']['shares'])}"
            )
    _say(f"equal rows of two runs: {infer.get('equal_rows_of_two_runs')}")
    for name in ("pixels", "scores"):
        for key, found in content.get(name, {}).items():
            _say(f"{name}, {key}: {_rounded(found)}")
    settings = content.get("settings", {})
    for name, cases in (*settings.items(), ("alone", content.get("alone", ()))):
        for case in sorted(cases, key=lambda case: -case.get("images_per_s", 0.0)):
            _say(f"{name}: {_rounded(case)}")
    _say(f"seconds: {_rounded(content['seconds'])}; failed: {', '.join(content['failures']) or 'nothing'}")


def _rounded(found: Any) -> Any:
    """Numbers short enough for a line."""
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    if isinstance(found, list):
        return [_rounded(value) for value in found]
    return float(f"{found:.4g}") if isinstance(found, float) else found


if __name__ == "__main__":
    sys.exit(main())
