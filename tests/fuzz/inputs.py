"""Hostile arrays, TIFFs, lists, labels, references and records: none may crash, hang, or be read as something else.

    python -m tests.fuzz.inputs [--cases N] [--seconds S] [--seed N] [--jobs N] [--output FILE]

Case `number` of a seed is always the same file: one of `seeds()`, changed once or a few times, in its header mostly.
Worker processes read each one as commands do. Samples of arrays must be what numpy reads, numbers of a text what
Python reads, grey of a TIFF what its tags say (read by Pillow), names of a list the lines of the text. All other files
give their content or one line. Reading may take 256 MiB. A failed case is kept, as a folder with the file and a report.
Exit code 1 when there is one.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from tests.fuzz.fields import change_bytes
from tests.fuzz.models import Subject, main
from tests.fuzz.worker import (
    CRASH,
    HANG,
    LOADING,
    MAKING,
    REFUSED,
    WRONG,
    Outcome,
    limit_memory,
    peak_nbytes,
    reason_class,
)
from tests.support.hostile_arrays import SHAPE, npy, npz
from tests.support.tiff_files import DEFLATE, NONE, RGB, SIGNED, WHITE_IS_ZERO, tiff
from vgg16gpu.bench.records.record import read as read_benchmark
from vgg16gpu.cluster.job import JobFolder
from vgg16gpu.compiler.onnx.metadata import LABELS_KEY, metadata_list
from vgg16gpu.compiler.quantization.scale_file import read_preprocess
from vgg16gpu.devices import tuned
from vgg16gpu.errors import Error, InputError
from vgg16gpu.io import labels
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.io.results import read_scores
from vgg16gpu.io.results.record import RecordFile
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.pictures.images import decode
from vgg16gpu.pictures.inputs import InputSpec, each_sample
from vgg16gpu.pictures.listing import read_names

READ, AGREES = "read", "read as by others"
VERDICTS: Final = (REFUSED, READ, AGREES, CRASH, HANG, WRONG)
NBYTES: Final = 256 << 20  # that reading may take
LONGEST: Final = 3000  # characters of a message
HEADER: Final = 160  # bytes, where most changes are
SPEC: Final = InputSpec(SHAPE)
ROOT: Final = Path(__file__).resolve().parents[2]
TOKENS: Final = (*(b"1 -1 0 2147483648 ( [ { , True None NaN".split()), b"9" * 30, b"'", b'"', b"\0")

Samples: TypeAlias = dict[str, npt.NDArray[Any]]


class WrongError(Exception):
    """A reader gives something else than what is in the file."""


@cache
def seeds() -> Mapping[str, bytes]:
    """Return whole files by their names; the ending says how a file is read."""
    dice = np.random.default_rng(0)
    numbers = dice.standard_normal((2, *SHAPE)).astype(np.float32)
    pixels = dice.integers(0, 256, (2, *SHAPE[1:], SHAPE[0]), dtype=np.uint8)
    text = " ".join(f"{value:.9g}" for value in numbers.reshape(-1))
    names = [*(path.name for path in sorted(ROOT.glob("*.*"))), "missing.png", "größe.png", "b c.png", '"quoted.png"']
    grey = np.arange(24).reshape(4, 6)
    run = {"run": {"model": "ab", "options": {}}, "started": "x", "finished": None, "rows": 1, "bytes": 2, "crc32": 3}
    rows = [{"input": str(number), "error": None, "scores": [1.5, number, -2e3]} for number in range(4)]
    return {
        "one.npy": npy(numbers[0]),
        "float.npy": npy(numbers),
        "double.npy": npy(numbers.astype(">f8")),
        "fortran.npy": npy(np.asfortranarray(numbers)),
        "pixels.npy": npy(pixels),
        "arrays.npz": npz({"a.npy": npy(numbers), "b.npy": npy(pixels)}),
        "stored.npz": npz({"a.npy": npy(numbers[0]), "b.npy": npy(numbers)}, zipfile.ZIP_STORED),
        "fortran.npz": npz({"f.npy": npy(np.asfortranarray(numbers)), "notes.txt": b"hello"}),
        "numbers.txt": text.encode(),
        "numbers16.txt": text.replace(" ", "\r\n").encode("utf-16"),
        "grey8.tif": tiff(grey * 10, 8),
        "grey12.tif": tiff(grey * 170, 12),
        "white16.tif": tiff(grey * 2700, 16, WHITE_IS_ZERO, order=">"),
        "packed16.tif": tiff(grey * 2700, 16, compression=DEFLATE),
        "signed.tif": tiff(grey, 16, sample_format=SIGNED),
        "colours.tif": tiff(np.arange(72).reshape(4, 6, 3) * 3, 8, RGB, compression=NONE),
        "lines.list": "\n".join(names).encode(),
        "lines8.list": "\r\n".join(names).encode("utf-8-sig"),
        "lines16.list": "\r\n".join(names).encode("utf-16"),
        "zeros.list": "\0".join(names[:-4]).encode() + b"\0",
        "ten.labels": "\r\n".join(f"class {i}" for i in range(10)).encode("utf-8-sig"),
        "rows.csv": b'input,error,scores_0,scores_1\na,,1.5,2\n"b",,3,nan\n',
        "rows.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows).encode(),
        "rows.json": json.dumps(rows).encode(),
        "run.record": json.dumps(run, indent=1).encode(),
        "job.record": json.dumps({"run": {}, "shard_size": 100}).encode(),
        "bench.record": (ROOT / "testbench" / "results" / "bench-cpu.json").read_bytes(),
        "scales.record": Path(f"{digits_model()}.int8.json").read_bytes(),
        "preprocess.record": Preprocess.named("keras").to_json().encode(),
        "tiles.record": b'{"gpu": "X", "made": {}, "tiles": {"a": {"tile": 1}}}',
        "labels.record": b'["cat", "dog"]',
    }


def input_case(number: int, seed: int = 0) -> tuple[str, bytes, str]:
    """Return what case `number` was made of and how, the file, its name. The first ones are the seeds themselves."""
    random = Random(f"{seed}:{number}")
    name, data = list(seeds().items())[number % len(seeds())]
    changes = []
    if number >= len(seeds()):
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            change = random.choice((_change_header, _change_token, change_bytes))
            data, what = change(random, data)
            changes.append(what)
    return ", ".join((name, *changes)), data, name


def _change_header(random: Random, data: bytes) -> tuple[bytes, str]:
    head, what = change_bytes(random, data[:HEADER])
    return head + data[HEADER:], f"header: {what}"


def _change_token(random: Random, data: bytes) -> tuple[bytes, str]:
    """Put a number, a bracket or a word in the place of some bytes: headers and documents consist of these."""
    place = random.randrange(min(len(data), 4 * HEADER) + 1)
    token = random.choice(TOKENS) * random.choice((1, 1, 1, 70, 2000))
    return data[:place] + token + data[place + random.choice((0, 1, len(token))) :], "token"


def work(pipe: Connection, state: Any, folder: Path, seed: int, numbers: range) -> None:
    """Send an `Outcome` for each number into the pipe, as the workers of worker.py."""
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # libtiff writes there what it finds
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    for number in range(len(seeds())):
        examine(number, seed, folder)  # now: what is imported then takes memory, and no file does
    pages = os.open("/proc/self/statm", os.O_RDONLY)
    for number in numbers:
        limit_memory(int(os.pread(pages, 100, 0).split()[0]) * 4096 + NBYTES)
        state[0:4] = number, LOADING, time.monotonic(), time.process_time()
        outcome = examine(number, seed, folder)
        state[1:3] = MAKING, time.monotonic()
        limit_memory(None)
        pipe.send((outcome, peak_nbytes()))
    pipe.close()


def examine(number: int, seed: int, folder: Path) -> Outcome:
    """Read a case and judge what becomes of it. Anything but an Error of one line is a crash."""
    what, data, name = input_case(number, seed)
    path = folder / name
    path.write_bytes(data)
    try:
        verdict = JUDGES[path.suffix](path, data)
        return Outcome(number, verdict, report=what)
    except WrongError as error:
        return Outcome(number, WRONG, reason_class(str(error), path), f"{what}\n{error}")
    except Error as error:
        is_line = "\n" not in str(error) and len(str(error)) <= LONGEST
        reason = (
            reason_class(str(error).replace(f"{folder}/", ""), path) if is_line else "a message of more than a line"
        )
        return Outcome(number, REFUSED if is_line else WRONG, reason, f"{what}\n{error}")
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"
        return Outcome(number, CRASH, where, f"{what}\n{traceback.format_exc()}")


def judge_array(path: Path, _: bytes) -> str:
    """Compare the samples of .npy, .npz and .txt with those of numpy and Python. Each has a row, or an error has."""
    found = list(each_sample(str(path), SPEC))
    samples = {name: sample for name, sample in found if not isinstance(sample, InputError)}
    refusals = [sample for _, sample in found if isinstance(sample, InputError)]
    if not found:
        raise WrongError("neither a sample nor an error")
    expected = _by_python(path) if path.suffix == ".txt" else _by_numpy(path)
    for name, sample in samples.items():
        wanted = sample if expected is None else expected.get(name)
        if wanted is None:
            raise WrongError("a sample that others do not read")
        if sample.dtype != wanted.dtype or not np.array_equal(sample, wanted, equal_nan=sample.dtype.kind == "f"):
            raise WrongError("other numbers")
    if not (expected or {}).keys() <= samples.keys() and not any(_may_refuse(str(error)) for error in refusals):
        raise WrongError(f"samples that others read are missing: {refusals[0] if refusals else ''}")
    if not samples:
        raise refusals[0]
    return READ if expected is None else AGREES


def _may_refuse(message: str) -> bool:
    """Return whether a refusal is one of files that numpy reads all the same."""
    words = ("packed by method", "too large for float32", "version of numpy's", "is no array", "of type (")
    return any(word in message for word in words)


def _by_numpy(path: Path) -> Samples | None:
    """Return the samples by their names; None where numpy cannot tell members apart."""
    found: Samples = {}
    try:
        if path.suffix == ".npy":
            return _cut(str(path), np.load(path, allow_pickle=False))
        if not path.read_bytes().startswith(b"PK\3\4"):
            return None  # an archive behind other bytes, which numpy does not look for
        with np.load(path, allow_pickle=False) as archive:
            if len(set(archive.files)) < len(archive.files):
                return None
            for key in archive.files:
                try:
                    found |= _cut(f"{path}[{key}]", archive[key])
                except Exception:
                    continue
    except Exception:
        return {}
    return found


def _cut(name: str, array: Any) -> Samples:
    """Return the samples of an array of one or several; none where the array is another one than SPEC's."""
    is_pixels = getattr(array, "dtype", None) == np.uint8
    if not isinstance(array, np.ndarray) or (array.dtype.kind != "f" and not is_pixels):
        return {}
    shape = SPEC.array_shape(is_pixels=is_pixels)
    if array.shape == shape:
        array = array[None]
    elif array.shape[1:] != shape:
        return {}
    with np.errstate(all="ignore"):
        samples = array if is_pixels else array.astype(np.float32)
    return {f"{name}[{i}]" if len(samples) > 1 else name: sample for i, sample in enumerate(samples)}


def _by_python(path: Path) -> Samples:
    data = path.read_bytes()
    try:
        words = _text(data).split()
        with np.errstate(all="ignore"):
            numbers = np.array([float(word) for word in words], np.float64).astype(np.float32)
    except ValueError:
        return {}
    if not numbers.size or numbers.size % math.prod(SHAPE) or any("_" in word for word in words):
        return {}
    parts = numbers.reshape(-1, *SHAPE)
    return {f"{path}[{i}]" if len(parts) > 1 else str(path): part for i, part in enumerate(parts)}


def _text(data: bytes, errors: str = "strict") -> str:
    is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    return data.decode("utf-16") if is_utf16 else data.decode("utf-8-sig", errors)


def judge_tiff(path: Path, data: bytes) -> str:
    """Compare grey of a TIFF with what its tags say, as Pillow reads these."""
    decode(data, str(path), 3)
    found = decode(data, str(path), 1)[..., 0]
    try:
        picture = Image.open(io.BytesIO(data), formats=["TIFF"])
    except UnidentifiedImageError:  # read with black for zero
        return READ
    with picture:
        tags = picture.tag_v2  # type: ignore[attr-defined]
        is_usual = set(tags.get(339, (1,))) <= {1, 4} and tags.get(262, 0) in (0, 1) and 274 not in tags
        if not is_usual or picture.mode not in ("I;16", "I;16B", "I;16L", "I;16N"):
            return READ
        bits = max(tags[258])
        numbers = np.asarray(picture).astype(np.float64)  # the file's own, zero for white or for black
    white = (1 << bits) - 1 if 8 < bits <= 16 else 65535
    part = np.minimum(numbers, white) / white
    wanted = np.floor(255 * (1 - part if tags.get(262, 0) == 0 else part) + 0.5)
    if np.abs(found - wanted).max(initial=0) > 1:  # halves go up on one side, down on the other
        raise WrongError("other grey than its tags say")
    return AGREES


def judge_list(path: Path, data: bytes) -> str:
    """Compare names with the lines of a list; between zero bytes stand names of files that are there."""
    names = read_names(str(path))
    if b"\0" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        if not all(map(os.path.lexists, names)):
            raise WrongError("names between zero bytes that are not there")
        return AGREES
    text = _text(data, "surrogateescape").replace("\r\n", "\n")
    lines = [line for line in text.split("\n" if "\n" in text else "\r") if line.strip(" \t")]
    for name, line in zip(names, lines, strict=len(names) == len(lines)):
        if name not in (line, line.strip(" \t"), line.strip(" \t")[1:-1]):
            raise WrongError("a name that is no line")
    if len(names) != len(lines):
        raise WrongError("another number of names than of lines")
    return AGREES


def judge_labels(path: Path, _: bytes) -> str:
    """Check that ten labels are ten lines."""
    found = labels.load(path, 10)
    if len(found) != 10 or any("\n" in name for name in found):
        raise WrongError("other labels")
    return READ


def judge_scores(path: Path, _: bytes) -> str:
    """Check that references are rows of scores, a name for each."""
    names, scores = read_scores(path)
    if scores.ndim != 2 or scores.dtype != np.float32 or names is None or len(names) != len(scores):
        raise WrongError("other scores")
    return READ


def judge_record(path: Path, data: bytes) -> str:
    """Give a document to each reader of records: one of them takes it, or all say a line."""
    text = data.decode(errors="replace")
    model, job = path.with_name("m.onnx"), path.parent / "job"
    job.mkdir(exist_ok=True)
    for place in (path.with_name("r.csv.run.json"), job / "_job.json", path.with_name("m.onnx.int8.json")):
        place.write_bytes(data)
    readers: Sequence[Callable[[], object]] = (
        RecordFile(path.with_name("r.csv"), {"model": "ab", "options": {}}).read,
        JobFolder(job).shard_size,
        lambda: read_benchmark(path),
        lambda: read_preprocess(model),
        lambda: Preprocess.from_json(text),
        lambda: metadata_list({LABELS_KEY: text}, LABELS_KEY, path),
    )
    has_tiles = bool(tuned.read(path, "X"))  # no error, but a warning
    refusals = []
    for reader in readers:
        try:
            reader()
        except Error as error:
            refusals.append(error)
    refusals.sort(key=lambda error: len(str(error)) + LONGEST * str(error).count("\n"))
    if (len(refusals) == len(readers) and not has_tiles) or (refusals and len(str(refusals[-1])) > LONGEST):
        raise refusals[-1]
    return READ


JUDGES: Final[Mapping[str, Callable[[Path, bytes], str]]] = {
    ".npy": judge_array,
    ".npz": judge_array,
    ".txt": judge_array,
    ".tif": judge_tiff,
    ".list": judge_list,
    ".labels": judge_labels,
    ".csv": judge_scores,
    ".jsonl": judge_scores,
    ".json": judge_scores,
    ".record": judge_record,
}


def _named_case(number: int, seed: int) -> tuple[str, Mapping[str, bytes]]:
    what, data, name = input_case(number, seed)
    return what, {name: data}


def inputs() -> Subject:
    """Return what is fuzzed here."""
    return Subject(
        "tests.fuzz.inputs",
        (__doc__ or "").splitlines()[0],
        "hostile arrays, TIFFs, lists, labels, references, records: read as commands do, compared with numpy, Pillow",
        work,
        _named_case,
        VERDICTS,
        AGREES,
        ("numpy", "pillow"),
    )


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 when a case failed."""
    return main(arguments, inputs())


if __name__ == "__main__":
    sys.exit(run())
