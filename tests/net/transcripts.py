"""Run commands and compare what they print and write with recorded transcripts: what a user sees stays as it is.

    python -m tests.net.transcripts                   # one line: all equal, or what differs first; exit code 1 then
    python -m tests.net.transcripts --dump DIR        # write the texts, to be compared with those of another checkout
    python -m tests.net.transcripts --record          # write transcripts.json, where a difference is meant
    python -m tests.net.transcripts --only infer      # those with this in their names

Each command runs in a folder with the same pictures, on the CPU device, whose scores have the same bits on every CPU.
Times, rates, paths, versions, dates and the names of processors are replaced by words.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from tests.net.http_transcripts import http_transcripts
from vgg16gpu.devices.cpu.compiler import cpu_name
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.zoo.digits import heldout

ROOT: Final = Path(__file__).resolve().parents[2]
RECORD: Final = Path(__file__).with_name("transcripts.json")
PICTURES: Final = 5
BROKEN: Final = "photos/3.png"
_COMPILING: Final = re.compile(r"^vgg16gpu: compiling .*\n", re.MULTILINE)
_NUMBER: Final = r"[0-9](?:[0-9.,]*[0-9])?(?:e[+-]?[0-9]+)?"
_WORDS: Final = (  # what differs from run to run, and what it becomes; the order matters
    (
        re.compile(r'("\w*(?:_s|seconds|per_s|nbytes|_bytes|memory\w*|cores|threads|size_mb|mtime_ns)": )' + _NUMBER),
        r"\1NUMBER",
    ),
    (re.compile(r'("(?:wall|(?:build|read|decod|comput|rank|writ)ing\w*|held|starved)": )' + _NUMBER), r"\1NUMBER"),
    (re.compile(r'("limit": )"\w+"'), r'\1"STAGE"'),
    (
        re.compile(
            r'("(?:date|started|written|system|cpu|name|version|hash|python|numpy|onnx|pillow|[\w-]+)": )"[^"]*'
            r'(?:\d{4}-\d\d-\d\d|\d+\.\d+\.\d+|Processor|CPU @|EPYC|Xeon)[^"]*"'
        ),
        r'\1"TEXT"',
    ),
    (re.compile(rf"{_NUMBER} ?(?:ms|us|s|GiB|MB|GB|GFLOP/s|GB/s|TFLOP/s)(?![\w/])"), "QUANTITY"),
    (re.compile(rf"{_NUMBER} (?:images|pictures|inputs|rows)(?:/s| per second| a second)"), "RATE"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[+:.\dZ]*"), "DATE"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "ADDRESS"),
    (re.compile(r"\bcommit [0-9a-f]{7,40}\b(?:\+changes)?|\b[0-9a-f]{40}\b"), "COMMIT"),
    (re.compile(r'("dirty": )(?:true|false)'), r"\1STATE"),
    (re.compile(r"[─━═]{3,}"), "---"),
    (re.compile(r" {2,}"), "  "),
)


@dataclass(frozen=True)
class Transcript:
    """A command of the package, what has run before it in the same folder, and the files that are shown behind it.

    before: commands, and ("CUT", FILE), which cuts the end off a file.
    """

    name: str
    words: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    files: tuple[str, ...] = ()
    is_timed: bool = False  # nearly every number is a time: none is compared


def _infer(*words: str) -> tuple[str, ...]:
    return ("infer", "photos", "--model", "digits", "--device", "cpu", *words)


def transcripts() -> Iterator[Transcript]:
    """Yield all of them."""
    groups = (
        "",
        "infer",
        "serve",
        "testbench",
        "bench",
        "ladder",
        "info",
        "calibrate",
        "report",
        "tune",
        "doctor",
        "cache",
    )
    lab = ("lab", *(f"lab {word}" for word in ("claims", "exercise", "list", "new", "profile", "run")))
    model = ("model", *(f"model {word}" for word in ("fetch", "make", "sample", "weights")))
    for group in (*groups, *lab, *model):
        yield Transcript(f"help {group}".strip().replace(" ", "-"), (*group.split(), "--help"))

    yield Transcript("infer-screen", _infer())
    yield Transcript("infer-screen-json", _infer("--json"))
    yield Transcript("infer-one", ("infer", "photos/0.png", "--model", "digits", "--device", "cpu", "--top", "3"))
    yield Transcript("infer-stdout-csv", _infer("--output", "-"))
    yield Transcript("infer-stdout-jsonl", _infer("--output", "-", "--format", "jsonl", "--scores"))
    for suffix in ("csv", "jsonl", "json", "txt", "npy", "npz"):
        shown = (f"rows.{suffix}", f"rows.{suffix}.run.json")
        yield Transcript(f"infer-{suffix}", _infer("--output", f"rows.{suffix}"), files=shown)
    yield Transcript("infer-csv-scores", _infer("--output", "rows.csv", "--scores"), files=("rows.csv",))
    whole = _infer("--output", "rows.csv")
    yield Transcript("infer-resume-whole", (*whole, "--resume"), (whole,), ("rows.csv",))
    yield Transcript("infer-resume-other", (*_infer("--output", "rows.csv", "--top", "2"), "--resume"), (whole,))
    yield Transcript("infer-resume-cut", (*whole, "--resume"), (whole, ("CUT", "rows.csv")), ("rows.csv",))
    shards = [_infer("--output", "job", "--shard", f"{i}/2") for i in range(2)]
    yield Transcript("infer-shard", shards[0])
    yield Transcript("infer-last-shard", shards[1], (shards[0],), ("job/_summary.json", "job/_SUCCESS"))
    yield Transcript("infer-outputs", _infer("--outputs", "features.2", "--output", "maps.npz"), files=("maps.npz",))
    yield Transcript("infer-fp16", _infer("--precision", "fp16", "--output", "-"))
    yield Transcript("infer-int8", _infer("--precision", "int8", "--output", "-"))
    yield Transcript("infer-preprocess", _infer("--preprocess", "unit", "--output", "-"))
    yield Transcript("infer-numbers", ("infer", "numbers.npy", "--model", "digits", "--device", "cpu", "--output", "-"))
    yield Transcript("infer-list", ("infer", "--files-from", "list.txt", "--model", "digits", "--output", "-"))
    for name, words in {
        "missing": ("infer", "nowhere.png", "--model", "digits"),
        "no-model": ("infer", "photos/0.png", "--model", "nowhere.onnx"),
        "no-onnx": ("infer", "photos/0.png", "--model", "photos/0.png"),
        "precision": _infer("--precision", "fp8"),
        "device": ("infer", "photos/0.png", "--model", "digits", "--device", "tpu"),
        "ending": _infer("--output", "rows.xls"),
        "broken": ("infer", BROKEN, "--model", "digits", "--device", "cpu"),
        "nothing": ("infer",),
        "option": _infer("--nonsense"),
        "command": ("nonsense",),
    }.items():
        yield Transcript(f"refused-{name}", words)

    yield Transcript("info", ("info", "digits", "--device", "cpu"))
    yield Transcript("info-json", ("info", "digits", "--device", "cpu", "--json"))
    yield Transcript("testbench", ("testbench", "digits", "--device", "cpu"))
    yield Transcript("testbench-json", ("testbench", "digits", "--device", "cpu", "--json"))
    numbers = ("testbench", "digits", "--device", "cpu", "--inputs", "numbers.npy")
    yield Transcript("testbench-inputs", numbers)
    copy = ("calibrate", "net.onnx", "--images", "photos", "--device", "cpu")
    yield Transcript("calibrate", copy, files=("net.onnx.int8.json",))
    yield Transcript("bench", ("bench", "digits", "--device", "cpu", "--repeats", "3", "--batch", "1"), is_timed=True)
    yield Transcript("weights", ("model", "weights", "digits", "--output", "weights"))
    yield Transcript("sample", ("model", "sample", "--size", "32", "--output", "sample.txt"), files=("sample.txt",))
    yield Transcript("lab-list", ("lab", "list"))
    yield Transcript("lab-exercises", ("lab", "exercise", "list"))
    yield Transcript("lab-claims", ("lab", "claims"))
    yield Transcript("tune-cpu", ("tune", "digits", "--device", "cpu"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, compare or record; return 1 where a transcript differs from the recorded one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.net.transcripts", description="Commands beside recorded ones."
    )
    parser.add_argument("--record", action="store_true", help="write the hashes of all transcripts")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write the texts of transcripts there")
    parser.add_argument("--only", default="", metavar="TEXT", help="transcripts that have this in their names")
    options = parser.parse_args(arguments)
    chosen = [each for each in transcripts() if options.only in each.name]
    with ThreadPoolExecutor(usable_cores()) as pool:
        found = dict(zip((each.name for each in chosen), pool.map(run, chosen), strict=True))
    found |= {name: text for name, text in http_transcripts() if options.only in name}
    if options.dump:
        options.dump.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (options.dump / f"{name}.txt").write_text(text)
    hashes = {name: digest(text) for name, text in found.items()}
    if options.record:
        kept = {name: each for name, each in recorded().items() if options.only and options.only not in name}
        RECORD.write_text(json.dumps(dict(sorted({**kept, **hashes}.items())), indent=0) + "\n")
        print(f"{len(found)} transcripts recorded")
        return 0
    expected = recorded()
    differing = [name for name in hashes if hashes[name] != expected.get(name)]
    if differing:
        print(f"{len(differing)} of {len(found)} transcripts differ, the first is {differing[0]}")
        return 1
    print(f"{len(found)} transcripts are equal")
    return 0


def digest(text: str) -> str:
    """Return the hash of a transcript, as it is recorded."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def recorded() -> dict[str, str]:
    """Return the recorded hashes by name; none where there is no record."""
    hashes: dict[str, str] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return hashes


def run(transcript: Transcript) -> str:
    """Return what a command prints and writes, in a fresh folder, with words in place of what differs in each run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        prepare(folder)
        for words in transcript.before:
            if words[0] == "CUT":
                path = folder / words[1]
                path.write_bytes(path.read_bytes()[:-9])  # as a run that was killed leaves it
            else:
                call(words, folder)
        done = call(transcript.words, folder)
        parts = [f"$ vgg16gpu {' '.join(transcript.words)}", f"exit code {done.returncode}"]
        said = _COMPILING.sub("", done.stderr)  # a cache that is not warm
        parts += [f"--- stdout\n{done.stdout.rstrip()}", f"--- stderr\n{said.rstrip()}"]
        parts += [f"--- {file}\n{content(folder / file)}" for file in transcript.files]
        text = normalised("\n".join(parts) + "\n", folder)
        return re.sub(" +", " ", re.sub(_NUMBER, "N", text)) if transcript.is_timed else text


def prepare(folder: Path) -> None:
    """Put pictures of digits (one of them broken), a list of them, numbers and a copy of the net into a folder."""
    pixels, numbers, _ = heldout()
    (folder / "photos").mkdir()
    for i, picture in enumerate(pixels[:PICTURES]):
        Image.fromarray(picture[:, :, 0]).save(folder / "photos" / f"{i}.png")
    (folder / BROKEN).write_bytes((folder / BROKEN).read_bytes()[:40])
    (folder / "list.txt").write_text("photos/1.png\nphotos/0.png\n")
    np.save(folder / "numbers.npy", np.asarray(numbers[:2]))
    (folder / "net.onnx").write_bytes((ROOT / "vgg16gpu" / "data" / "digits.onnx").read_bytes())


def call(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of this checkout."""
    packages = os.pathsep.join(map(str, (ROOT, ROOT / "serving", ROOT / "lab")))
    environ = {**os.environ, "PYTHONPATH": packages, "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "vgg16gpu", *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=300)


def content(path: Path) -> str:
    """Return what a file holds, as text."""
    if not path.exists():
        return "(no such file)"
    if path.suffix in (".npy", ".npz"):
        loaded = np.load(path)
        arrays = {"array": loaded} if path.suffix == ".npy" else dict(loaded)
        return "\n".join(
            f"{name} {array.dtype} {array.shape} {array.ravel()[:20].tolist()}" for name, array in arrays.items()
        )
    return path.read_text()[:20_000].rstrip()


def normalised(text: str, folder: Path) -> str:
    """Return a text with words in place of paths and of what differs from run to run."""
    words = {str(folder): "FOLDER", str(ROOT): "CHECKOUT", sys.executable: "PYTHON", cpu_name(): "PROCESSOR"}
    for found, word in words.items():
        text = text.replace(found, word)
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    return text


if __name__ == "__main__":
    sys.exit(main())
