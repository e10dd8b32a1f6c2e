r"""Rows of a .jsonl file: a JSON object a line, all ASCII, with the keys of .csv, and `scores` as a list.

    {"input": "a.png", "error": null, "class_1": 281, "label_1": "tabby", "score_1": 9.5, "probability_1": 0.75, ...}

What there is not is null, and so are infinite numbers, for which JSON has no word. Bytes of a name that are no UTF-8
are the escapes \udc80 to \udcff, of which Python's json.loads and os.fsencode make the bytes again.
"""

from __future__ import annotations

import json
import re
from typing import Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.io.results.columns import Columns, best_scores
from vgg16gpu.io.results.number_texts import number_texts, row_texts
from vgg16gpu.io.scores import PredictionBatch

NULL: Final = "null"
FINITE: Final = {"nan": NULL, "inf": NULL, "-inf": NULL}

_TEXT: Final = rb'"(?:[^"\\\n]++|\\.)*+"'
_NUMBER: Final = rb"(?:[-+.e0-9]+|null)"
_NUMBER_BYTES: Final = b"0123456789+-.enul, "
_BEGINNING: Final = b'{"input": "'
_LONGEST_TEXTS: Final = 1 << 20  # bytes of name, error and labels

quoted = json.encoder.encode_basestring_ascii


class JsonlForm:
    """How answers become rows and how rows are recognised."""

    header = b""

    def __init__(self, columns: Columns) -> None:
        keys = ["input", "error", *columns.rank_names, *(["scores"] if columns.all_scores else [])]
        self._template = "{" + ", ".join(f'"{key}": %s' for key in keys) + "}\n"
        self._scores = columns.width if columns.all_scores else 0
        self.longest = _LONGEST_TEXTS + 32 * (len(keys) + self._scores)
        labels = map(quoted, columns.labels) if columns.labels is not None else [NULL] * columns.width
        self._labels = [*labels, NULL] if columns.top else [NULL]  # index -1, no class, finds the last
        patterns = {"input": b"(%b)" % _TEXT, "error": b"(null|%b)" % _TEXT, "scores": b""}
        kinds = {"class": rb"(?:\d+|null)", "label": b"(?:null|%b)" % _TEXT}
        parts = (
            b'"%b": %b' % (key.encode(), patterns[key] if key in patterns else kinds.get(key.split("_")[0], _NUMBER))
            for key in keys
        )
        self._head = re.compile(rb"\{" + b", ".join(parts))

    def rows(self, answers: PredictionBatch) -> list[bytes]:
        """Return a line for each answer."""
        errors = [quoted(error) if error else NULL for error in answers.errors]
        columns = [list(map(quoted, answers.names)), errors]
        scores = best_scores(answers)
        for rank in range(answers.best.shape[1]):
            classes = answers.best[:, rank].tolist()
            columns.append([NULL if i < 0 else str(i) for i in classes])
            columns.append([self._labels[i] for i in classes])
            columns.append(number_texts(scores[:, rank], FINITE))
            columns.append(number_texts(answers.probabilities[:, rank], FINITE))
        if self._scores:
            lists = row_texts(answers.scores.reshape(len(errors), -1), ", ", FINITE)
            columns.append([NULL if bad else f"[{row}]" for row, bad in zip(lists, answers.errors, strict=True)])
        return [(self._template % fields).encode() for fields in zip(*columns, strict=True)]

    def is_row(self, line: bytes) -> bool:  # noqa: ARG002 - as in .csv, where it may not be
        """Return whether a line feed at the end of `line` ends the row: within texts it is an escape."""
        return True

    def head(self, row: bytes) -> tuple[str, bool] | None:
        """Return a row's input name and whether it has an error; None if it is not a row of these columns."""
        found = self._head.match(row)
        if not found or not self._is_end(row[found.end() :], has_error=found[2] != b"null"):
            return None
        try:
            return str(parse_json(found[1], "a name")), found[2] != b"null"
        except InputError:  # an escape that JSON does not know
            return None

    def may_be_torn(self, tail: bytes) -> bool:
        """Return whether `tail` can be the beginning of a row."""
        return tail.startswith(_BEGINNING[: len(tail)])

    def _is_end(self, end: bytes, *, has_error: bool) -> bool:
        """Return whether a row may end so after the last rank, or after `"scores": `."""
        if not self._scores or has_error:
            return end == (b"null}\n" if self._scores else b"}\n")
        numbers = end[1:-3]
        is_list = end.startswith(b"[") and end.endswith(b"]}\n") and not numbers.translate(None, _NUMBER_BYTES)
        return is_list and numbers.count(b",") == self._scores - 1
