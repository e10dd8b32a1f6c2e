"""What scores say: probabilities, the best classes, and files of scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import InputError
from vgg16gpu.io.files import atomic_writer

Scores: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Rank:
    """One line of a top-k: the class, its name, its score and its probability."""

    index: int
    label: str
    score: float
    probability: float


def softmax(scores: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Softmax over the last axis in float64. A row with NaN or +Inf becomes NaN."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True).astype(np.float64))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def top_classes(scores: npt.NDArray[np.floating[Any]], count: int) -> npt.NDArray[np.intp]:
    """Indices of the `count` largest of each row of (N, K) scores, best first; the lower class first among equals."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :count]


def rank(scores: Scores, labels: Sequence[str], count: int, *, are_probabilities: bool) -> tuple[Rank, ...]:
    """The `count` best classes of one row of scores, best first; none where `score_problem` finds one."""
    if score_problem(scores):
        return ()
    probabilities = scores if are_probabilities else softmax(scores)
    best = top_classes(scores, count)
    return tuple(Rank(int(i), labels[i], float(scores[i]), float(probabilities[i])) for i in best)


def score_problem(scores: Scores) -> str:
    """Why a row of scores has no best class, as "scores are NaN"; empty when it has one.

    -Inf is a probability of zero, unless there is nothing else.
    """
    if np.isnan(scores).any():
        return "scores are NaN"
    return "" if np.isfinite(scores.max()) else "scores are infinite"


def write_scores(path: Path, names: Sequence[str], scores: Scores, others: Mapping[str, Scores] | None = None) -> None:
    """Write (N, ...) scores in the form that the ending asks for: .npy, .npz, .csv, .txt or .json.

    .npz holds `names` and `scores`, and `others`, further outputs of the model by name, as `scores:NAME`; the rest have
    no place for those. .csv holds a header and a line per input; .txt a line of numbers per input; numbers in text have
    nine digits, so that reading them back gives the same float32. Raises InputError.

    A file's name may hold bytes that are no UTF-8, which Python reads as U+DC80 to U+DCFF ("surrogateescape"). .csv has
    the very bytes; .json, all ASCII, these code points as escapes, and .npz as they are: `os.fsencode` makes the bytes
    of them. A name may hold line breaks, too: .csv quotes it.
    """
    writer = _WRITERS[check_score_suffix(path)]
    with atomic_writer(path) as file:
        if others and holds_all_outputs(path):
            _write_npz(file, names, scores, others)
        else:
            writer(file, names, scores)


def holds_all_outputs(path: Path) -> bool:
    """Whether a file of that ending takes more than the first output of a model."""
    return path.suffix.lower() == ".npz"


def check_score_suffix(path: Path) -> str:
    """The ending of `path`, in lower case. Raises InputError unless `write_scores` knows it."""
    suffix = path.suffix.lower()
    if suffix not in _WRITERS:
        raise InputError(f"output '{path}' has the ending '{path.suffix}'; accepted are {', '.join(_WRITERS)}")
    return suffix


def write_text(file: BinaryIO, rows: npt.NDArray[Any]) -> None:
    """One line of white-space separated numbers per row, nine digits each."""
    for row in rows.reshape(len(rows), -1):
        file.write(" ".join([f"{value:.9g}" for value in row.tolist()]).encode() + b"\n")


def _write_npy(file: BinaryIO, _: Sequence[str], scores: Scores) -> None:
    np.save(file, scores)


def _write_npz(
    file: BinaryIO, names: Sequence[str], scores: Scores, others: Mapping[str, Scores] | None = None
) -> None:
    more: dict[str, Any] = {f"scores:{name}": array for name, array in (others or {}).items()}
    np.savez(file, names=np.array(names), scores=scores, **more)


def _write_csv(file: BinaryIO, names: Sequence[str], scores: Scores) -> None:
    rows = scores.reshape(len(scores), -1)
    file.write(("input," + ",".join(f"score_{i}" for i in range(rows.shape[1])) + "\n").encode())
    for name, row in zip(names, rows, strict=True):
        quoted = '"' + name.replace('"', '""') + '"'
        numbers = ",".join([f"{value:.9g}" for value in row.tolist()])
        file.write(f"{quoted},{numbers}\n".encode(errors="surrogateescape"))


def _write_txt(file: BinaryIO, _: Sequence[str], scores: Scores) -> None:
    write_text(file, scores)


def _write_json(file: BinaryIO, names: Sequence[str], scores: Scores) -> None:
    pairs = zip(names, scores, strict=True)
    content = [{"input": name, "scores": finite_or_none(row.tolist())} for name, row in pairs]
    file.write(json.dumps(content).encode() + b"\n")


def finite_or_none(value: Any) -> Any:
    """A copy of nested lists, dicts and numbers with NaN and infinities as None: JSON has no word for them."""
    if isinstance(value, dict):
        return {key: finite_or_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


_WRITERS: dict[str, Callable[[BinaryIO, Sequence[str], Scores], None]] = {
    ".npy": _write_npy,
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".txt": _write_txt,
    ".json": _write_json,
}
