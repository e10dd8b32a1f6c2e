"""Hostile inputs and uses of every command, as a table: what is made, what is typed, what must be said.

A row names what is hostile. Its command must end with one of the codes, in the words, on lines of its own and without a
traceback. Words of the shell: single quotes keep what stands in them. All rows run in a folder made by `furnish`.
"""

from __future__ import annotations

import codecs
import itertools
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from PIL import Image

from tests.support.hostile_arrays import bomb
from vgg16gpu.compiler.onnx.metadata import LABELS_KEY, MEAN_KEY, NOTE_KEY, PREPROCESS_KEY
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.zoo.digits import heldout

STEERING: Final = "\x1b[2J\n\x9b1m"
NO_UTF8: Final = os.fsdecode(b"\xff\xfe.x")


@dataclass(frozen=True)
class Use:
    """A row. files: of this row alone. environment: None takes a variable away. given: on standard input."""

    name: str
    words: str
    says: str = ""  # a regular expression of what stderr must have
    codes: tuple[int, ...] = (2,)
    files: Mapping[str, bytes] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    given: bytes = b""
    metadata: Mapping[str, str] = field(default_factory=dict)  # of metadata.onnx

    def __str__(self) -> str:
        return self.name


def furnish(place: Path) -> None:
    """Make a model, pictures, arrays, and hostile files of every kind that a name may stand for."""
    shutil.copy(digits_model(), place / "m.onnx")
    shutil.copy(digits_model(), place / "q.onnx")
    shutil.copy(f"{digits_model()}.int8.json", place / "m.onnx.int8.json")
    images = heldout()[0][:2]
    (place / "photos").mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image[:, :, 0]).save(place / "photos" / f"{number}.png")
    shutil.copy(place / "photos" / "0.png", place / "one.png")
    np.save(place / "x.npy", images)
    (place / "empty").touch()
    (place / "binary").write_bytes(zlib.compress(bytes(range(256)) * 8))
    (place / "zeros").write_bytes(bytes(5000))
    (place / "text").write_text("neither a model nor a number\n")
    (place / "digits").write_text("9" * 5000)
    (place / "utf16").write_text("nothing.png\r\n", encoding="utf-16")
    (place / "folder").mkdir()
    (place / "loop").symlink_to("loop")
    (place / "dangling").symlink_to("nowhere")
    (place / "endless").symlink_to("/dev/zero")
    (place / "full").symlink_to("/dev/full")
    os.mkfifo(place / "pipe")
    (place / NO_UTF8).write_bytes(b"text")
    (place / "two\nlines").write_bytes(b"text")
    model = onnx.load(place / "m.onnx")
    onnx.save(model, place / "split.onnx", save_as_external_data=True, location="split.bin", size_threshold=0)
    for name, target in {"missing": "", "outside": "../outside.bin", "device": "endless", "pipe": "pipe"}.items():
        _relocate(place / "split.onnx", place / f"weights-{name}.onnx", target or "nothing.bin")
    data = (place / "m.onnx").read_bytes()
    (place / "cut.onnx").write_bytes(data[: len(data) // 2])
    (place / "cut-head.onnx").write_bytes(data[:7])
    (place / "flipped.onnx").write_bytes(data.replace(b"Conv", b"Covn"))
    (place / "twice.onnx").write_bytes(data * 2)
    (place / "names.onnx").write_bytes(_renamed(model).SerializeToString())
    (place / "gzip.onnx").write_bytes(b"\x1f\x8b" + data[2:3000])


def _relocate(source: Path, target: Path, location: str) -> None:
    """Copy a model whose weights lie in other files, with another place for them."""
    model = onnx.load(source, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    target.write_bytes(model.SerializeToString())


def _renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which every name has a sequence that clears a terminal, and a line's end."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    for item in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        item.name += STEERING
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name + STEERING for name in names if name]
    del graph.value_info[:]
    found.producer_name = found.doc_string = STEERING
    return found


# ---- Names of files: every option that reads one

# What a name may stand for, and the word or words that tell it.
NAMES: Final[Mapping[str, str]] = {
    "a name of nothing": "nothing",
    "an empty file": "empty",
    "a binary file": "binary",
    "a file of zero bytes": "zeros",
    "a text": "text",
    "five thousand digits": "digits",
    "a folder": "folder",
    "a link to itself": "loop",
    "a link to nothing": "dangling",
    "a device without an end": "endless",
    "a name that is no UTF-8": f"'{NO_UTF8}'",
    "a name of two lines": "'two\nlines'",
    "a name of 300 characters": "n" * 300,
    "a path of 9,000 characters": "n/" * 4500,
    "a file below a file": "text/below",
    "an empty name": "''",
}
ON_CPU: Final = "--device cpu"
MODEL: Final = f"--model m.onnx {ON_CPU}"
READING: Final[Mapping[str, tuple[int, ...]]] = {  # commands with a place for a name: codes for what is not refused
    f"infer {{}} {MODEL}": (2,),
    f"infer one.png {MODEL} --files-from {{}}": (0, 1, 2),  # of lines that name nothing each has its row
    f"infer one.png {ON_CPU} --model {{}}": (2,),
    f"infer one.png {MODEL} --labels {{}}": (2,),
    "info {}": (2,),
    "testbench {}": (2,),
    f"testbench m.onnx {ON_CPU} --inputs {{}}": (2,),
    f"testbench m.onnx {ON_CPU} --inputs x.npy --references {{}}": (2,),
    f"testbench m.onnx {ON_CPU} --inputs x.npy --labels {{}}": (2,),
    f"testbench m.onnx {ON_CPU} --images {{}}": (2,),
    "bench {}": (2,),
    f"bench m.onnx {ON_CPU} --compare {{}}": (2,),
    "ladder {}": (2,),
    f"ladder m.onnx {ON_CPU} --inputs {{}}": (2,),
    "calibrate {} --images photos": (2,),
    f"calibrate m.onnx {ON_CPU} --images {{}}": (2,),
    "tune {}": (2,),
    "report --results {}": (2,),
    "lab list --dir {}": (2,),
    "lab run S5 --quick --model {}": (2,),
    "lab run S3 --quick --data {}": (2,),
    "lab run --dir {}": (2,),
    "lab profile mine --dir {}": (2,),
    "lab claims --records {}": (2,),
    "lab claims --ladder {}": (2,),
    f"lab exercise check {{}} {ON_CPU}": (2,),
    "model weights {} --output weights": (2,),
}
# Elsewhere an empty name is the current folder, as for all programs, or no option at all.
TAKING_NAMES: Final = tuple(words for words in READING if words.startswith("infer") or "records" in words)
# Behind these is the loader of `infer --model`, which has all rows.
SAME_LOADER: Final = (
    *("info {}", "testbench {}", "bench {}", "ladder {}", "calibrate {} --images photos", "tune {}"),
    *("lab run S5 --quick --model {}", "model weights {} --output weights"),
)
OF_A_LOADER: Final = ("nothing", "folder", "endless", "n/" * 4500)


def reading() -> Iterator[Use]:
    """Yield a row for each of READING and the NAMES that it takes."""
    for (words, codes), (what, name) in itertools.product(READING.items(), NAMES.items()):
        if name == "''" and words not in TAKING_NAMES:
            continue
        if words in SAME_LOADER and name not in OF_A_LOADER:
            continue
        if name == "folder" and words.startswith("report"):  # a page of no records
            continue
        yield Use(f"{what} for {words.format('NAME')}", words.format(name), codes=codes)


# ---- Names of files: every option that writes one

WRITING: Final = (
    f"infer one.png {MODEL} --output {{}}.csv",
    f"infer one.png {MODEL} --output {{}}.npy",
    f"infer one.png {MODEL} --shard 0/1 --output {{}}",
    f"testbench m.onnx {ON_CPU} --inputs x.npy --output {{}}",
    f"testbench m.onnx {ON_CPU} --inputs x.npy --save {{}}",
    f"bench m.onnx {ON_CPU} --output {{}}",
    f"bench m.onnx {ON_CPU} --plot {{}}.png",
    f"ladder m.onnx {ON_CPU} --output {{}}",
    f"ladder m.onnx {ON_CPU} --plot {{}}.svg",
    "tune m.onnx --output {}",
    "tune m.onnx --table {}",
    "report --output {}",
    "lab run S5 --quick --output {}",
    "lab new kernel --dir {}",
    "lab profile direct-hwc --output {}",
    "lab exercise start tile --dir {}",
    "model make --output {}",
    "model make --sample {}",
    "model fetch --output {}",
    "model sample --size 32 --output {}",
    "model weights m.onnx --output {}",
)
UNWRITABLE: Final[Mapping[str, str]] = {
    "a file in a folder that is not there": "nowhere/deeper/file",
    "a file below a file": "text/file",
    "a name of 300 characters": "n" * 300,
}


def writing() -> Iterator[Use]:
    """Yield a row for each of WRITING and UNWRITABLE."""
    makes_folders = (
        "lab ",
        "testbench m.onnx --device cpu --inputs x.npy --save",
        "infer one.png --model m.onnx --dev",
    )
    for words, (what, name) in itertools.product(WRITING, UNWRITABLE.items()):
        if name == "nowhere/deeper/file" and words.startswith(makes_folders) and not words.endswith(("csv", "npy")):
            continue  # these make it
        yield Use(f"{what} for {words.format('NAME')}", words.format(name))


# ---- Numbers as text: every option that takes one

NO_NUMBERS: Final = (
    *("", " ", "nan", "inf", "-inf", "1e400", "9" * 4000, "9" * 5000, "-1", "0x10", "1_000", "\u0663", "\u00b2"),
    *("1e", "1..2", "one", "1;2", "--", "1\n2", "\udcff", "1" + "0" * 30, "None", "[1]"),
)
NUMBERS: Final = (  # commands with a place for a number that none of NO_NUMBERS is
    "serve digits --device cpu --port {}",
    "serve digits --device cpu --batch {}",
    "serve digits --device cpu --max-delay-ms {}",
    "serve digits --device cpu --queue {}",
    "serve digits --device cpu --workers {}",
    "serve digits --device cpu --max-body-mb {}",
    "serve digits --device cpu --max-pixels {}",
    "serve digits --device cpu --max-connections {}",
    "serve digits --device cpu --deadline-s {}",
    "serve digits --device cpu --stall-s {}",
    f"infer one.png {MODEL} --batch {{}}",
    f"infer one.png {MODEL} --size {{}}",
    f"infer one.png {MODEL} --size 32x{{}}",
    f"infer one.png {MODEL} --top {{}}",
    f"infer one.png {MODEL} --shard {{}}/2",
    f"infer one.png {MODEL} --shard 0/{{}}",
    f"infer one.png {MODEL} --shard 0/1 --output job --shard-size {{}}",
    f"infer one.png {MODEL} --workers {{}}",
    "infer one.png --model m.onnx --device cuda:{}",
    "infer one.png --model m.onnx --devices cpu:{}",
    "infer one.png --model m.onnx --ray local:{}",
    f"infer one.png {MODEL} --mean 1,2,{{}}",
    f"info m.onnx {ON_CPU} --batch {{}}",
    f"info m.onnx {ON_CPU} --size {{}}",
    f"testbench m.onnx {ON_CPU} --tolerance {{}}",
    f"testbench m.onnx {ON_CPU} --images photos --min-accuracy {{}}",
    f"testbench m.onnx {ON_CPU} --iterations {{}}",
    f"testbench m.onnx {ON_CPU} --iterations 1,{{}}",
    f"testbench m.onnx {ON_CPU} --batch {{}}",
    f"bench m.onnx {ON_CPU} --seconds {{}}",
    f"bench m.onnx {ON_CPU} --sustained {{}}",
    f"bench m.onnx {ON_CPU} --repeats {{}}",
    f"bench m.onnx {ON_CPU} --threshold {{}}",
    f"ladder m.onnx {ON_CPU} --size {{}}",
    f"calibrate m.onnx {ON_CPU} --images photos --limit {{}}",
    f"calibrate m.onnx {ON_CPU} --images photos --batch {{}}",
    "tune m.onnx --seconds {}",
    "tune m.onnx --top {}",
    "tune m.onnx --batch {}",
    "lab run direct-hwc --size {}",
    "lab run direct-hwc --strides {}",
    "lab run direct-hwc --blocks {}",
    "lab run direct-hwc --channels {}",
    "lab run direct-hwc --output-channels {}",
    "lab run direct-hwc --kernel {}",
    "lab run direct-hwc --padding {}",
    "lab run S3 --image {}",
    "lab profile direct-hwc --channels {}",
    "lab profile direct-hwc --size {}",
    "lab exercise hint tile {}x",
    "model make --size {}",
    "model make --seed {}",
    "model sample --size {}",
)


# ---- Documents of JSON: every reader of one

_DEEP = b"[" * 100_000
DOCUMENTS: Final[Mapping[str, bytes]] = {
    "JSON of 100,000 brackets": _DEEP,
    "JSON of 100,000 brackets that close": _DEEP + b"]" * 100_000,
    "JSON that ends too early": b'{"schema": 3, "run": {',
    "a number of JSON": b"1",
    "null": b"null",
    "an empty list": b"[]",
    "an empty object": b"{}",
    "5,000 digits": b"9" * 5000,
    "a number beyond float": b'{"scales": 1e999, "schema": 1e999, "run": 1e999, "shard_size": 1e999}',
    "NaN everywhere": b'{"scales": NaN, "schema": NaN, "run": NaN, "rows": NaN, "shard_size": NaN}',
    "each key twice": b'{"run": {}, "run": [], "schema": 3, "schema": {}, "shard_size": 1, "shard_size": null}',
    "JSON of UTF-16 without content": json.dumps({"run": []}).encode("utf-16"),
    "JSON behind a mark of UTF-8": codecs.BOM_UTF8 + b'{"run": 1, "schema": "3"}',
    "half a surrogate": b'{"run": "\\ud800", "schema": "\\udfff"}',
    "bytes that are no UTF-8": b'{"run": "\xff\xfe"}',
    "an empty document": b"",
    "zero bytes": bytes(64),
    "keys that are paths": b'{"../../etc/passwd": {"__class__": 1}, "run": {"model": ["..", "/"]}}',
}
READERS: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = {  # the file that holds the document: command, codes
    "q.onnx.int8.json": (f"infer one.png {ON_CPU} --model q.onnx --precision int8", (2,)),
    "rows.csv.run.json": (f"infer one.png {MODEL} --output rows.csv --resume", (2,)),
    "job/_job.json": (f"infer one.png {MODEL} --shard 0/1 --output job", (2,)),
    "labels.json": (f"infer one.png {MODEL} --labels labels.json", (2,)),
    "old.json": (f"bench m.onnx {ON_CPU} --compare old.json", (2,)),
    "records/S5.json": ("lab claims --records records", (2,)),
    "ladder.json": ("lab claims --ladder ladder.json", (2,)),
    "references.json": (f"testbench m.onnx {ON_CPU} --inputs x.npy --references references.json", (2,)),
    "references.jsonl": (f"testbench m.onnx {ON_CPU} --inputs x.npy --references references.jsonl", (2,)),
    "references.csv": (f"testbench m.onnx {ON_CPU} --inputs x.npy --references references.csv", (2,)),
}


def documents() -> Iterator[Use]:
    """Yield a row for each reader and document."""
    for (file, (words, codes)), (what, content) in itertools.product(READERS.items(), DOCUMENTS.items()):
        files = {file: content} | ({"rows.csv": b"input,error\n"} if file.startswith("rows") else {})
        yield Use(f"{what} as {file}", words, codes=codes, files=files)


def metadata() -> Iterator[Use]:
    """Yield a row for each document in the metadata of a model, and for notes that steer a terminal."""
    for key, (what, content) in itertools.product((PREPROCESS_KEY, MEAN_KEY, LABELS_KEY), DOCUMENTS.items()):
        told = {key: content.decode("utf-8", "replace")}
        yield Use(f"{what} as {key} of a model", f"info metadata.onnx {ON_CPU}", codes=(0, 2), metadata=told)
        if key == LABELS_KEY:
            words = f"infer one.png --model metadata.onnx {ON_CPU}"
            yield Use(f"{what} as {key} of a model for infer", words, codes=(0, 2), metadata=told)
    for what, text in {
        "an escape sequence": "\x1b[2J",
        "lines": "a\nb\r\nc" * 9,
        "a megabyte": "n" * (1 << 20),
    }.items():
        words = f"infer one.png --model metadata.onnx {ON_CPU}"
        yield Use(f"{what} as {NOTE_KEY} of a model", words, codes=(0,), metadata={NOTE_KEY: text})


# ---- Models that are damaged: every command that loads one

DAMAGED: Final[Mapping[str, str]] = {
    "a model cut in half": "cut.onnx",
    "a model cut in its head": "cut-head.onnx",
    "a model of unknown operators": "flipped.onnx",
    "a model that is packed": "gzip.onnx",
    "weights that are missing": "weights-missing.onnx",
    "weights outside of the folder": "weights-outside.onnx",
    "weights on a device": "weights-device.onnx",
    "weights in a pipe": "weights-pipe.onnx",
    "a pipe for a model": "pipe",
}
LOADING: Final = (
    f"infer one.png {ON_CPU} --model {{}}",
    f"info {ON_CPU} {{}}",
    f"testbench {ON_CPU} {{}}",
    f"bench {ON_CPU} {{}}",
    f"ladder {ON_CPU} {{}}",
    f"calibrate {ON_CPU} --images photos {{}}",
    "lab run S5 --quick --model {}",
    "model weights --output weights {}",
)


def models() -> Iterator[Use]:
    """Yield a row for each command and damage; `info` and `model weights` tell of operators that do not run."""
    for words, (what, name) in itertools.product(LOADING, DAMAGED.items()):
        tells = name == "flipped.onnx" and words.startswith(("info", "model weights"))
        yield Use(f"{what} for {words.format('MODEL')}", words.format(name), codes=(0, 1) if tells else (2,))


# ---- The environment

_INFER: Final = f"infer one.png {MODEL} --output rows.csv"
ENVIRONMENTS: Final = (
    *(
        Use(f"VGG16GPU_THREADS is {text!r:.20}", _INFER, "VGG16GPU_THREADS=.* is not a number of threads", (2,), {},
            {"VGG16GPU_THREADS": text})
        for text in ("0", "-1", "9" * 5000, "\u0663", "1e2", "many", "1025", "2 3")
    ),
    *(
        Use(f"VGG16GPU_ORDER is {text!r:.20}", _INFER, "VGG16GPU_ORDER=.* is not forward", (2,), {},
            {"VGG16GPU_ORDER": text})
        for text in ("-1", "9" * 5000, "\u0663", "sideways", "4294967296")
    ),
    Use("VGG16GPU_SANITIZE is unknown", _INFER, "VGG16GPU_SANITIZE=.* is not one of", (2,), {},
        {"VGG16GPU_SANITIZE": "all"}),
    Use("VGG16GPU_SANITIZE of a library that is not there", _INFER, "must be in the process from its start", (2,), {},
        {"VGG16GPU_SANITIZE": "address"}),
    Use("there is no cache folder and no compiler", _INFER, "", (2,), {}, {"VGG16GPU_CACHE": "text", "CXX": "false"}),
    Use("there is no HOME", _INFER, "", (0,), {}, {"HOME": None}),
    Use("HOME is empty", "cache", "", (0,), {}, {"HOME": "", "VGG16GPU_CACHE": None, "XDG_CACHE_HOME": None}),
    *(
        Use(f"VGG16GPU_CACHE is {text!r:.20}", "cache", "", (0, 2), {}, {"VGG16GPU_CACHE": text})
        for text in ("text", "loop", "/proc/self", "~nobody-at-all/x", "nothing", "/dev/null", "n" * 300, "text/below")
    ),
    *(
        Use(f"COLUMNS is {text!r:.20}", _INFER, "", (0,), {}, {"COLUMNS": text})
        for text in ("0", "-5", "1", "\u00b2", "9" * 5000, "wide")
    ),
    Use("COLUMNS is no number, for a table", f"info m.onnx {ON_CPU}", "", (0,), {}, {"COLUMNS": "\u00b2"}),
    Use("LINES is no number", f"info m.onnx {ON_CPU}", "", (0,), {}, {"LINES": "\u00b2", "TERM": "unknown"}),
)  # fmt: skip
COMPILERS: Final = (  # CXX, for a cache without kernels
    Use("CXX has a quote that does not end", _INFER, "no closing quotation", environment={"CXX": "'x"}),
    Use("CXX is not there", _INFER, "is not found", environment={"CXX": "no-such-compiler"}),
    Use("CXX is a folder", _INFER, "is not found", environment={"CXX": "./folder"}),
    Use("CXX is an empty word", _INFER, "is not found", environment={"CXX": "''"}),
    Use("CXX is no compiler", _INFER, "", environment={"CXX": "true"}),
    Use("CXX fails", _INFER, "ended with exit code 1", environment={"CXX": "false"}),
    Use("CXX says that it is one, and is none", _INFER, "", environment={"CXX": "echo g++"}),
    Use("CXX is a file without a program", _INFER, "", environment={"CXX": "./no-program"}),
    Use("CXX writes bytes that are no text", _INFER, "", environment={"CXX": "./bytes"}),
    Use("CXX has a flag that no compiler knows", _INFER, "", environment={"CXX": "g++ --no-such-flag"}),
    Use("doctor meets a CXX that fails", f"doctor {ON_CPU}", "", (1,), environment={"CXX": "false"}),
)


# ---- Uses by hand

USES: Final = (
    Use("no command", "", "Usage"),
    Use("an unknown command", "inefr", "Did you mean 'infer'"),
    Use("a command that is an option", "--nonsense", "No such option"),
    Use("a command of 5,000 characters", "x" * 5000, "No such command"),
    Use("a command that is no UTF-8", f"'{NO_UTF8}'", "No such command"),
    Use("an option twice", f"infer one.png {MODEL} --model m.onnx", "", (0,)),
    Use("an option without its value", "infer one.png --model", "requires an argument"),
    Use("an escape sequence as a name", "infer '\x1b[2J'", r"\\x1b\[2J' does not exist"),
    *(
        Use(f"a model whose names steer a terminal, for {words}", words.format("names.onnx"), "", (0, 1, 2))
        for words in (
            "info {} --device cpu", "info {} --attributes", "info {} --graph", "model weights {} --output weights",
            "infer one.png --device cpu --model {}", "infer one.png --device cpu --model {} --outputs x",
            "testbench {} --device cpu --inputs x.npy --layers",
        )
    ),
    Use("a zero of a picture", f"infer empty.png {MODEL}", "empty", (2,), {"empty.png": b""}),
    Use("a hundred times one picture", f"infer {'one.png ' * 100} {MODEL} -q", "", (0,)),
    Use("numbers on standard input that are none", f"infer - {MODEL}", "is not a number", (2,), given=b"1 2 three"),
    Use("nothing on standard input", f"infer - {MODEL}", "is empty", (2,)),
    Use("a picture on standard input", f"infer - {MODEL}", "", (2,), given=b"\x89PNG\r\n\x1a\n" + bytes(99)),
    Use("standard input twice", f"infer - --files-from - {MODEL}", "it can be one of them", (2,), given=b"1"),
    Use("a list of zero bytes", f"infer one.png --files-from zeros {MODEL}", "has zero bytes, so it is no text"),
    Use("a list that names itself", f"infer --files-from list {MODEL}", "", (2,), {"list": b"list\n"}),
    Use("a list of half UTF-16", f"infer --files-from list {MODEL}", "no text of utf-16", (2,), {"list": b"\xff\xfea"}),
    Use("a list of UTF-32", f"infer --files-from list {MODEL}", "UTF-32", (2,), {"list": "a".encode("utf-32")}),
    Use("a list of devices", f"infer --files-from list {MODEL}", "", (2,), {"list": b"/dev/zero\n/dev/stdin\npipe\n"}),
    Use("a list of long names", f"infer --files-from list {MODEL}", "", (2,),
        {"list": b"n" * 70_000 + b"\n" + b"n/" * 9999}),
    Use("an archive that is none", f"infer archive.npz {MODEL}", "not a .npz archive", (2,),
        {"archive.npz": b"PK\3\4" + bytes(64)}),
    Use("an archive that unpacks to far more", f"infer bomb.npz {MODEL}", "rank 1", (2,), {"bomb.npz": bomb(1 << 25)}),
    Use("--null without a list", f"infer one.png {MODEL} --null", ""),
    Use("labels for another number of classes", f"infer one.png {MODEL} --labels text",
        "class names, the model has 10"),
    Use("all options that name devices", f"infer one.png {MODEL} --devices cpu", "give one of them"),
    Use("a device of another kind", "infer one.png --model m.onnx --device tpu", "is not a device"),
    Use("a GPU that is not there", "infer one.png --model m.onnx --device cuda:99", "cannot be used"),
    Use("outputs that the model has not", f"infer one.png {MODEL} --outputs 'a,b'", "has no value 'a'"),
    Use("an output without a name", f"infer one.png {MODEL} --outputs ','", "a name is empty"),
    Use("a size that the model does not take", f"infer one.png {MODEL} --size 65535", ""),
    Use("a mean of another number of channels", f"infer one.png {MODEL} --mean 1,2", "1 channels"),
    Use("a deviation next to nothing", f"infer one.png {MODEL} --std 1e-300", "within the range of float32"),
    Use("a resumed file that is no table", f"infer one.png {MODEL} --output rows.csv --resume", "", (2,),
        {"rows.csv": bytes(99)}),
    Use("a resumed file of another form", f"infer one.png {MODEL} --output rows.npy --resume", "resume"),
    Use("a shard behind the last", f"infer one.png {MODEL} --shard 2/2 --output job", "is not I/N"),
    Use("a Ray cluster that is none", f"infer one.png {MODEL} --ray nowhere", "is no Ray cluster"),
    Use("a column that is not asked for", f"infer one.png {MODEL} --column a", "--column"),
    Use("a job's list that is no parquet", f"infer --files-from list.parquet {MODEL} --shard 0/1 --output job", "",
        (2,), {"list.parquet": b"PAR1" + bytes(64) + b"PAR1"}),
    Use("references that are NaN", f"testbench m.onnx {ON_CPU} --inputs x.npy --references r.txt", "", (1, 2),
        {"r.txt": b"nan " * 20}),
    Use("references of another number of rows", f"testbench m.onnx {ON_CPU} --inputs x.npy --references r.txt", "",
        (2,), {"r.txt": b"1 2 3"}),
    Use("rungs that there are not", f"ladder m.onnx {ON_CPU} --rungs A,Z", ""),
    Use("an experiment that there is not", "lab run S9", "did you mean"),
    Use("a variant that is a path", "lab run ../../etc/passwd", ""),
    Use("a kernel whose name is a path", "lab new ../kernel", ""),
    Use("a kernel whose name is a keyword", "lab new class", ""),
    Use("a kernel whose name is no ASCII", "lab new kernél", ""),
    Use("a kernel of one's own that is no Python", "lab list --dir own", "", (2,),
        {"own/k.py": b"def (", "own/k.cu": b""}),
    Use("a kernel of one's own that ends Python", "lab list --dir own", "", (2,),
        {"own/k.py": b"import sys\nsys.exit(0)", "own/k.cu": b""}),
    Use("a kernel of one's own with zero bytes", "lab list --dir own", "", (2,),
        {"own/k.py": bytes(9), "own/k.cu": b""}),
    Use("an exercise that there is not", "lab exercise start nothing", "there is no exercise"),
    Use("a hint that there is not", "lab exercise hint tile 99", ""),
    Use("an exercise without its first line", f"lab exercise check text {ON_CPU}", "is of no exercise"),
    Use("data that is no IDX", "lab run S3 --quick --data idx", "", (2,),
        {"idx/t10k-images-idx3-ubyte": b"\0\0\x08\3" + b"\xff" * 12}),
    Use("a download from a file", "model fetch --url file:///etc/passwd", "is not an http or https address"),
    Use("a download from nowhere", "model fetch --url http://", "could not be downloaded"),
    Use("a download from a port that is none", "model fetch --url http://localhost:99999/x", "could not be downloaded"),
    Use("a download from a host that is none", "model fetch --url http://[::1/x", "could not be downloaded"),
    Use("a model to a name that another file has", "model make --variant vgg11 --size 32 --output text",
        "exists and is not a model"),
    Use("weights into a folder that has files", "model weights m.onnx --output photos", "--force"),
    Use("a plot of another form", f"bench m.onnx {ON_CPU} --plot plot.doc", ""),
    Use("a report of a device", "report --results endless", ""),
    Use("a cache that is cleared where there is none", "cache --clear", "", (0,), {}, {"VGG16GPU_CACHE": "nothing"}),
)  # fmt: skip


# ---- Processes: what a shell does around a command, "$@"

PROCESSES: Final = tuple(
    (Use(name, words, says, codes), shell)
    for name, shell, words, says, codes in (
        ("stdout is closed", 'exec "$@" >&-', "cache", "", (0,)),
        ("stderr is closed", 'exec "$@" 2>&-', "infer nothing.png", "", (2,)),
        ("all three streams are closed", 'exec "$@" <&- >&- 2>&-', "infer nothing.png", "", (2,)),
        ("stdin is closed, and is to be read", 'exec "$@" <&-', f"infer - {MODEL}", "is empty", (2,)),
        ("stdout is full", 'exec "$@" >/dev/full', "cache --json", "No space left", (2,)),
        ("stderr is full", 'exec "$@" 2>/dev/full', "infer nothing.png", "", (2,)),
        ("nobody reads stdout", 'exec 9<>pipe 8>pipe 9<&-; exec "$@" >&8', "cache", "", (1,)),
        ("the working folder is gone", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"', "model sample --size 32", "",
         (2,)),
        ("TMPDIR is not there", 'TMPDIR=/nowhere/at/all exec "$@"', "infer nothing.png", "", (2,)),
        ("TMPDIR is of 4,000 characters", 'TMPDIR=/$(printf %04000d 0) exec "$@"', "cache", "", (0,)),
        ("there is no environment", 'exec env -i "PYTHONPATH=$PYTHONPATH" "$@"', "cache", "", (0,)),
        ("a locale of ASCII", 'LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 exec "$@"', "infer gr\u00f6\u00dfe.png",
         "does not exist", (2,)),
        ("16 files may be open", 'ulimit -n 16; exec "$@"', _INFER, "", (0, 1, 2)),
        ("files may have no bytes", 'ulimit -f 0; exec "$@"', _INFER, "rows.csv", (2,)),
        ("warnings are errors", 'PYTHONWARNINGS=error exec "$@"', _INFER, "", (0,)),
    )
)  # fmt: skip
