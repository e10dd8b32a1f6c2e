"""A run without a network: the same answers each time, in blocks, to whatever output."""

from functools import cache

import numpy as np

from vgg16gpu.io.results import Columns, RunRecord, list_digest, open_results
from vgg16gpu.io.scores import PredictionBatch, softmax, top_classes

CLASSES = 5
LABELS = ("cat", 'dog, "big"', "line\nbreak", "größe", "\u2028")
HOSTILE = (
    "a.png",
    'b "quoted", c.png',
    "line\nbreak.png",
    "return\r\nfeed.png",
    "bytes-\udcff\udc80.png",
    "größe \U0001f600.png",
    "",
    ",",
    '"',
    '""',
    "back\\slash\\n.png",
    " blanks ",
    "=1+1.png",
    "tab\t.png",
    "nan",
    "bad\n\"'.png",
)
EVERY_KIND = ("csv", "jsonl", "parquet", "npy", "npz", "txt", "json")
WITH_RESUME = EVERY_KIND[:3]


def names_of(count):
    return [HOSTILE[i] if i < len(HOSTILE) else f"photos/{i}.jpg" for i in range(count)]


def columns_of(top=2, scores=True, labels=LABELS, shape=(CLASSES,), outputs=("y",)):
    return Columns(top, labels, scores, shape, outputs)


def record_of(count=40, **other):
    names = names_of(count)
    fields = {"model": "ab" * 32, "options": {"precision": "fp32", "size": [8, 8]}, "version": "0.3.0"}
    return RunRecord(**{**fields, "list": list_digest(names), "inputs": count, **other})


@cache
def row_of(i, shape):
    return np.random.default_rng(i).standard_normal(shape) * 10.0 ** (i % 12 - 6)


def scores_of(first, last, shape=(CLASSES,)):
    """The scores of inputs `first` to `last`: every third has an error."""
    rows = [row_of(i, shape) for i in range(first, last)]
    scores = np.array(rows, np.float32).reshape(-1, *shape)
    scores[[i % 3 == 2 for i in range(first, last)]] = np.nan
    return scores


def error_of(i):
    return f"'{names_of(i + 1)[i]}' is no picture, \"{i}\"\nat all" if i % 3 == 2 else ""


def answers_of(first, last, columns=None):
    columns = columns or columns_of()
    scores = scores_of(first, last, columns.shape)
    errors = [error_of(i) for i in range(first, last)]
    failed = np.array([bool(error) for error in errors])
    best = np.full((last - first, columns.top), -1, np.intp)
    probabilities = np.full((last - first, columns.top), np.nan)
    if columns.top:
        best[~failed] = top_classes(scores[~failed], columns.top)
        probabilities[~failed] = np.take_along_axis(softmax(scores[~failed]), best[~failed], 1)
    others = tuple(np.full((last - first, 2), i, np.float32) for i in range(len(columns.outputs) - 1))
    return PredictionBatch(names_of(last)[first:], errors, scores, best, probabilities, others)


def write(results, first, last, columns=None, block=7):
    """Inputs `first` to `last`, a block at a time."""
    for start in range(first, last, block):
        results.write(answers_of(start, min(start + block, last), columns))


def run(path, count=40, columns=None, record=None, resume=False, block=7, finish=True, stop=None):
    """A whole run, or one that stops after some rows; how many rows there were before."""
    columns = columns or columns_of()
    with open_results(path, columns, record or record_of(count), resume=resume) as results:
        done = len(results.done)
        results.skip(names_of(count)[:done])
        write(results, done, count if stop is None else stop, columns, block)
        if finish and stop is None:
            results.finish()
    return done
