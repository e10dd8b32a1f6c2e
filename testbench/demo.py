"""Show that it works, for `make demo`: a handwritten digit, then VGG16 on ten pictures beside onnxruntime's scores.

It runs three commands, and prints each before it runs: `infer`, `model make` where no such model is there, `testbench`.
The VGG16 is the one that the package has stored references for, also where there is a trained one.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vgg16gpu.checks.references import StoredReferences
from vgg16gpu.compiler.onnx.file import open_onnx
from vgg16gpu.errors import Error, ModelError

ROOT: Final = Path(__file__).resolve().parents[1]
MODELS: Final = (Path("models/vgg16.onnx"), Path("models/random-vgg16.onnx"))  # the first as `model make` had it once
BATCH: Final = 10
REFERENCES: Final = ROOT / "testbench" / "references" / "vgg16-224-seed0.npz"


def main() -> int:
    """Run the three commands in this folder; the exit code of the first that fails, else 0."""
    python = shown_python()
    digit = os.path.relpath(ROOT / "vgg16gpu" / "data" / "digit_sample.png")
    model, is_there = choose_model(MODELS)
    commands = [["infer", "--model", "digits", digit]]
    if not is_there:
        commands.append(["model", "make", "--output", str(model)])
    commands.append(["testbench", str(model), "--batch", str(BATCH)])
    for command in commands:
        if code := run(python, command):
            return code
    print(next_steps(python))
    return 0


def choose_model(paths: Sequence[Path]) -> tuple[Path, bool]:
    """Return the first path that has the VGG16 of the stored references, else the last, and whether one has it.

    Other files are left alone, and at the last path `model make` refuses to overwrite what it did not write.
    """
    found = next((path for path in paths if is_known(path)), None)
    return found or paths[-1], found is not None


def is_known(path: Path) -> bool:
    """Tell whether a file is the VGG16 of the stored references. Raises InputError where these are damaged."""
    stored = StoredReferences.read(REFERENCES)
    try:
        file = open_onnx(path)
    except ModelError:
        return False
    return len(file.content) == stored.model_bytes and file.digest() == stored.model_sha256


def run(python: str, command: Sequence[str]) -> int:
    """Print a command of the package as it is typed, and run it; its exit code."""
    print(f"\n$ {python} -m vgg16gpu {shlex.join(command)}", flush=True)
    return subprocess.run([sys.executable, "-m", "vgg16gpu", *command], check=False).returncode


def shown_python() -> str:
    """Return how this Python is called: by a path from here where it lies below this folder."""
    path = Path(sys.executable)
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def next_steps(python: str) -> str:
    """Return what to try after the demo, in three lines."""
    return f"""
Try next:
  a trained VGG16:    {python} -m vgg16gpu model fetch    (553 MB; commands without --model take it)
  your own pictures:  {python} -m vgg16gpu infer FOLDER --output rows.csv
  your own network:   README.md, "Use your own network\""""


def main_or_message() -> int | str:
    """Run `main`; where it cannot go on, return why in one line."""
    try:
        return main()
    except Error as error:
        return f"demo: {error}"
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main_or_message())
