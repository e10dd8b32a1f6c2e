"""Make the stored references anew, or compare them with a new computation: `testbench/references/*.npz`.

    python testbench/make_references.py                  # write all three; makes models of 553 MB in a temporary folder
    python testbench/make_references.py --check          # write nothing; exit code 1 where something differs
    python testbench/make_references.py digits --check   # one of them

Needs onnxruntime (`pip install '.[test]'`). testbench/references/README.md says what the files hold.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from vgg16gpu.checks.accuracy import SCORE_TOLERANCE, score_error
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.onnxruntime_session import CPU_PROVIDER, import_onnxruntime
from vgg16gpu.checks.references import StoredReferences
from vgg16gpu.checks.testbench import STANDARD_INPUTS
from vgg16gpu.compiler.onnx.file import open_onnx
from vgg16gpu.errors import Error
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import Pixels, normalise
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.io.synthetic import TESTBENCH_SEED, structured_images
from vgg16gpu.zoo.digits import DIGITS_MEAN, DIGITS_STD, heldout
from vgg16gpu.zoo.generate import make_vgg

FOLDER: Final = Path(__file__).resolve().with_name("references")
_SEED: Final = 0  # of the weights


def vgg16_references(size: int) -> StoredReferences:
    """Make a VGG16 of random weights for `size` pixels, and ask onnxruntime about the testbench's pictures."""
    option = "" if size == 224 else f" --size {size}"
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "vgg16.onnx"
        make_vgg(model, size=size, seed=_SEED)
        return ask_onnxruntime(
            model,
            f"vgg16gpu model make{option} --seed {_SEED}",
            structured_images(STANDARD_INPUTS, size, TESTBENCH_SEED),
            f"structured pictures 0 to {STANDARD_INPUTS - 1} of seed {TESTBENCH_SEED} (vgg16gpu/io/synthetic.py)",
            (IMAGENET_MEAN, IMAGENET_STD),
        )


def digits_references() -> StoredReferences:
    """Ask onnxruntime about all digits that the shipped net was not trained on."""
    pictures, _, labels = heldout()
    words = (
        f"the {len(labels)} held-out digits in their order (vgg16gpu/data/digits_heldout.npz), 8x8 enlarged to 32x32"
    )
    return ask_onnxruntime(digits_model(), "vgg16gpu/data/digits.onnx", pictures, words, (DIGITS_MEAN, DIGITS_STD))


def ask_onnxruntime(
    model: Path, name: str, pictures: Pixels, inputs: str, mean_std: tuple[tuple[float, ...], tuple[float, ...]]
) -> StoredReferences:
    """Compute the scores of (N, S, S, C) pictures, one picture a run. Raises Error without onnxruntime."""
    mean, std = mean_std
    file = open_onnx(model)
    return StoredReferences(
        model=name,
        model_sha256=file.digest(),
        model_bytes=len(file.content),
        inputs=inputs,
        pictures=pictures,
        mean=np.array(mean),
        std=np.array(std),
        scores=Oracle(model, file=file).scores(normalise(pictures, mean, std)),
        onnxruntime=import_onnxruntime().__version__,
        provider=CPU_PROVIDER,
    )


MAKERS: Final[Mapping[str, Callable[[], StoredReferences]]] = {
    "digits": digits_references,
    "vgg16-224-seed0": lambda: vgg16_references(224),
    "vgg16-244-seed0": lambda: vgg16_references(244),
}


def differences(stored: StoredReferences, computed: StoredReferences) -> list[str]:
    """Return what differs: nothing where all but the scores is equal, and these are within what fp32 promises.

    Another version of onnxruntime, and another CPU, add in another order: that is no difference.
    """
    found = [
        name
        for name in ("model", "model_sha256", "model_bytes", "inputs", "provider", "pictures", "mean", "std")
        if not np.array_equal(getattr(stored, name), getattr(computed, name))
    ]
    if stored.scores.shape != computed.scores.shape:
        return [*found, f"scores, of shape {stored.scores.shape} and {computed.scores.shape}"]
    worst = worst_error(stored, computed)
    return found if worst <= SCORE_TOLERANCE else [*found, f"scores, by {worst:.2g}"]


def worst_error(stored: StoredReferences, computed: StoredReferences) -> float:
    """Return the largest max|y - r| / max|r| of all pictures."""
    return float(score_error(computed.scores, stored.scores).max())


def main() -> int:
    """Read the command line, make or check each file; 1 where something differs or cannot be made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(MAKERS)} (default: all)")
    parser.add_argument("--check", action="store_true", help="compare what is stored; write nothing")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in MAKERS]:
        parser.error(f"there are no references '{unknown[0]}'; choose of {', '.join(MAKERS)}")
    failed = False
    for name in options.names or MAKERS:
        path = FOLDER / f"{name}.npz"
        computed = MAKERS[name]()
        if options.check:
            stored = StoredReferences.read(path)
            wrong = differences(stored, computed)
            failed = failed or bool(wrong)
            verdict = (
                f"differs in {', '.join(wrong)}"
                if wrong
                else f"agrees, worst error {worst_error(stored, computed):.1e}"
            )
            versions = f"onnxruntime {computed.onnxruntime} now, {stored.onnxruntime} stored"
            print(f"{name}: {verdict}; {versions}")
        else:
            computed.write(path)
            print(
                f"{path}: {path.stat().st_size} bytes, {len(computed.scores)} rows of {computed.scores.shape[1]} scores"
            )
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Error as error:
        sys.exit(f"make_references: {error}")
