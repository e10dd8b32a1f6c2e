"""Rows of results to files as they come, and back: .csv, .jsonl, .parquet, .npy, .npz, .txt, .json, standard output."""

from vgg16gpu.io.results.columns import Columns
from vgg16gpu.io.results.opening import KINDS, check_output, holds_all_outputs, open_results
from vgg16gpu.io.results.reading import read_options, read_scores
from vgg16gpu.io.results.record import RunRecord, list_digest, record_path
from vgg16gpu.io.results.results import ResultWriter

__all__ = [
    "KINDS",
    "Columns",
    "ResultWriter",
    "RunRecord",
    "check_output",
    "holds_all_outputs",
    "list_digest",
    "open_results",
    "read_options",
    "read_scores",
    "record_path",
]
