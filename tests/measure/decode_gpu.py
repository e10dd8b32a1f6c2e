"""JPEG decoded on the GPU: how fast, how far from the CPU's pixels, and what that does to scores.

    python -m tests.measure.decode_gpu [MODEL.onnx] [--photographs DIR] [--output FILE]

Needs a GPU and nvImageCodec (`pip install '.[decode-gpu]'`). Its parts; one that fails leaves the others:

- alone: nvImageCodec on files in pinned memory, images/s by backend, files of a call, decoders, their threads;
- infer: `vgg16gpu infer FOLDER --decode gpu` and `cpu`, whole processes in fp16, twice each: equal rows?
- settings: the same inside of one process, without its start: slots, decoders, threads that read;
- pixels: after decoding, against libjpeg's, by subsampling of colours, with and without interpolation of colours;
- scores: of both decoders in fp32 and fp16, beside what fp16 itself changes.

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import numpy.typing as npt
from PIL import Image

import vgg16gpu
from tests.measure import decode_photos
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import Opened, open_codec, open_device
from vgg16gpu.devices.base import Bytes, Device
from vgg16gpu.devices.cuda import nvimgcodec
from vgg16gpu.devices.cuda.nvimgcodec import NvDecoder, Way, load_nvimgcodec
from vgg16gpu.devices.picture_decoder import PictureDecoder, Place
from vgg16gpu.io.files import atomic_writer
from vgg16gpu.pictures.inputs import spec_of
from vgg16gpu.pictures.listing import list_files
from vgg16gpu.runtime.answers import decoding
from vgg16gpu.runtime.answers.folder import Folder
from vgg16gpu.runtime.answers.rows import Ranking
from vgg16gpu.runtime.engine import Engine

COUNT, COMPARED, BUDGET = 6400, 2000, 150.0  # pictures, and seconds of all parts together
ROUND: Final = 2048  # files that are decoded for one rate
BATCHES: Final = (32, 64, 128, 256)
SIDE_BY_SIDE: Final = (1, 2, 3, 4)
THREADS: Final = {"hardware": (1, 2, 4), "CUDA": (4, 8, 16)}
REPEATED, NO_INTERPOLATION = 400, ":fancy_upsampling=0"  # pictures, and how they are decoded to see what that changes
SETTINGS: Final = (  # rows of a slot, decoders, threads that read (None: as many as `infer` takes)
    *((rows, 3, None) for rows in (32, 64, 128)),
    *((64, decoders, None) for decoders in (1, 2, 4)),
    *((64, 3, workers) for workers in (2, 4, 8)),
    (128, 2, 4),
)

Pixels = npt.NDArray[np.int16]


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
                _write(options.output, content)
    _show(content)
    return int(bool(content["failures"]))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.measure.decode_gpu", description="JPEG decoded on the GPU, and on the CPU beside it."
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
    """Rates of nvImageCodec, by itself."""
    found: list[dict[str, Any]] = []
    with _opened(where) as device:
        block = _Block(device, [path.read_bytes() for path in where.files[:ROUND]])
        for way in nvimgcodec.ways():
            cases = [(batch, many, way.threads) for batch in BATCHES for many in SIDE_BY_SIDE]
            cases += [(64, 2, threads) for threads in THREADS[way.name] if threads != way.threads]
            for batch, many, threads in cases:
                where.require_time()
                case = {"way": way.name, "batch": batch, "decoders": many, "threads": threads}
                try:
                    found.append({**case, "images_per_s": block.rate(way._replace(threads=threads), batch, many)})
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


def _settings(where: Where) -> list[dict[str, Any]]:
    """Rates inside of one process, its engine built."""
    found = []
    with _opened(where) as device, _engine(where, device) as engine:
        _rate(engine, where, 64, 3, None)
        for rows, decoders, workers in SETTINGS:
            where.require_time(25)  # for what comes behind
            rates = [_rate(engine, where, rows, decoders, workers) for _ in range(2)]
            found.append({"rows": rows, "decoders": decoders, "workers": workers, "images_per_s": rates})
    return found


def _rate(engine: Engine, where: Where, rows: int, decoders: int, workers: int | None) -> float:
    preprocess = engine.model.preprocess(engine.graph, engine.program.input.shape)
    spec = spec_of(engine.graph.input, engine.program.input.shape[1:], preprocess)
    width, height = decode_photos.SIZE
    room = max(decoding.ROOM_NBYTES, (rows + 1) * width * height * 3)
    codec = open_codec(engine.device)
    with (
        mock.patch.multiple(decoding, ROWS=rows, DECODERS=decoders, ROOM_NBYTES=room),
        Folder(list_files([where.folder]), spec, workers, decodes_on_device=True) as folder,
        folder.answers(engine, Ranking(5), codec=codec) as stream,
    ):
        answers = iter(stream)
        next(answers)  # from the first rows to the last
        start = time.perf_counter()
        count = sum(len(each.names) for each in answers)
        return count / (time.perf_counter() - start)


def _pixels(where: Where) -> dict[str, Any]:
    """Differences after decoding, of 255."""
    found: dict[str, Any] = {}
    numbers = range(min(where.compared, where.count))
    data = [where.files[number].read_bytes() for number in numbers]
    wanted = []
    for path in where.files[: len(numbers)]:
        with Image.open(path) as picture:
            wanted.append(np.asarray(picture).astype(np.int16))
    with _opened(where) as device:
        block = _Block(device, data)
        for way in nvimgcodec.ways():
            kinds = (("interpolated", nvimgcodec.OPTIONS, len(data)), ("repeated", NO_INTERPOLATION, REPEATED))
            for name, options, most in kinds:
                where.require_time(20)
                key = f"{way.name}, colours {name}"
                try:
                    with mock.patch.object(nvimgcodec, "OPTIONS", options):
                        pixels = block.pixels(way, most)
                    found[key] = _differences(pixels, wanted[:most])
                except Exception as error:
                    found[key] = {"error": str(error)}
        block.close()
    return found


def _differences(found: Sequence[Pixels | None], wanted: Sequence[Pixels]) -> dict[str, Any]:
    by: dict[str, list[Pixels]] = {}
    for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        if ours is not None:
            by.setdefault(decode_photos.subsampling(number), []).append(np.abs(ours - theirs))
    return {
        "refused": sum(pixels is None for pixels in found),
        **{
            kind: {
                "pictures": len(each),
                "equal_share": float(np.mean([(one == 0).mean() for one in each])),
                "mean": float(np.mean([one.mean() for one in each])),
                "largest_mean": float(max(one.mean() for one in each)),
                "max": int(max(one.max() for one in each)),
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
    "infer": _infer,
    "pixels": _pixels,
    "scores": _scores,
    "settings": _settings,
    "alone": _alone,
}


# ---- Tools


def run(*words: str) -> str:
    """What a command of the package prints. Raises RuntimeError when it fails."""
    done = subprocess.run([sys.executable, "-m", "vgg16gpu", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout


class _Block:
    """Files in pinned memory, and room for their pictures on the device."""

    def __init__(self, device: Device, data: Sequence[bytes]) -> None:
        self._device = device
        height, width = decode_photos.SIZE[::-1]
        self._shape = height, width, 3
        self._nbytes = height * width * 3
        self._buffer = device.pinned(sum(map(len, data)))
        self._files: list[Bytes] = []
        start = 0
        for each in data:
            self._files.append(self._buffer[start : start + len(each)])
            self._files[-1][:] = np.frombuffer(each, np.uint8)
            start += len(each)
        self._address = device.allocate(len(data) * self._nbytes)
        self._places = [Place(self._address + i * self._nbytes, height, width) for i in range(len(data))]

    def rate(self, way: Way, batch: int, many: int) -> float:
        """Images a second of so many decoders side by side, files in calls of `batch`."""
        with ExitStack() as stack:
            decoders = [stack.enter_context(closing(self._decoder(way))) for _ in range(many)]
            shares = [range(share * batch, len(self._files), many * batch) for share in range(many)]

            def work(decoder: PictureDecoder, starts: Sequence[int]) -> int:
                calls = [slice(start, start + batch) for start in starts]
                return sum(sum(decoder.decode(self._files[call], self._places[call])) for call in calls)

            for decoder in decoders:
                decoder.decode(self._files[:batch], self._places[:batch])  # it takes its memory
            with ThreadPoolExecutor(many) as pool:
                start = time.perf_counter()
                done = sum(pool.map(work, decoders, shares))
                seconds = time.perf_counter() - start
        if done != len(self._files):
            raise RuntimeError(f"{len(self._files) - done} files were refused")
        return done / seconds

    def pixels(self, way: Way, most: int) -> list[Pixels | None]:
        """Those of the first files, at most so many; None where one was refused."""
        found: list[Pixels | None] = []
        with closing(self._decoder(way)) as decoder:
            for start in range(0, min(most, len(self._files)), 64):
                call = slice(start, min(start + 64, most))
                taken = decoder.decode(self._files[call], self._places[call])
                read = np.empty((len(taken), *self._shape), np.uint8)
                self._device.copy_out(read, self._places[start].address)
                self._device.synchronize()
                found += [one.astype(np.int16) if done else None for one, done in zip(read, taken, strict=True)]
        return found

    def close(self) -> None:
        """Give memory back."""
        self._device.free(self._address)
        self._device.unpin(self._buffer)

    def _decoder(self, way: Way) -> NvDecoder:
        assert self._device.foreign  # a card's
        return NvDecoder(load_nvimgcodec(), self._device.foreign, way)


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


def _write(path: Path, content: dict[str, Any]) -> None:
    with atomic_writer(path) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


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
    for name, most in (("settings", 20), ("alone", 12)):
        found = sorted(content.get(name, ()), key=_fastest, reverse=True)
        for case in found[:most]:
            _say(f"{name}: {_rounded(case)}")
        for case in (case for case in found if "error" in case):
            _say(f"{name}: {case}")
    _say(f"seconds: {_rounded(content['seconds'])}; failed: {', '.join(content['failures']) or 'nothing'}")


def _fastest(case: dict[str, Any]) -> float:
    return float(np.max(case.get("images_per_s", 0.0)))


def _rounded(found: Any) -> Any:
    """Numbers short enough for a line."""
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    if isinstance(found, list):
        return [_rounded(value) for value in found]
    return float(f"{found:.4g}") if isinstance(found, float) else found


if __name__ == "__main__":
    sys.exit(main())
