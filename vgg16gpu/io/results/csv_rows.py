"""Rows of a .csv file: RFC 4180 with line feeds, UTF-8 with the very bytes of names that are none.

    input,error,class_1,label_1,score_1,probability_1,...,scores_0,scores_1,...

A text is quoted where it holds a comma, a quote or a line break, and only there. What there is not (the answer to an
input with an error, a number that is NaN) is an empty field; infinite numbers are inf and -inf.
"""

from __future__ import annotations

import re
from typing import Final

from vgg16gpu.io.results.columns import Columns, best_scores
from vgg16gpu.io.results.number_texts import number_texts, row_texts
from vgg16gpu.io.scores import PredictionBatch

_NO_NAN: Final = {"nan": ""}
_SPECIAL: Final = re.compile('[",\r\n]')

_TEXT: Final = rb'("[^"]*+(?:""[^"]*+)*+"|[^",\r\n]*+)'
_NUMBER: Final = rb"(?:[-+.e0-9]+|-?inf|)"
_NUMBER_BYTES: Final = b"0123456789+-.einf"
_TORN: Final = re.compile(rb'(?:%b,)*(?:"[^"]*+(?:""[^"]*+)*+"?|[^",\r\n]*+)' % _TEXT)
_LONGEST_TEXTS: Final = 1 << 20  # bytes of name, error and labels


class CsvForm:
    """How answers become rows and how rows are recognised."""

    def __init__(self, columns: Columns) -> None:
        scores = columns.width if columns.all_scores else 0
        names = ["input", "error", *columns.rank_names, *(f"scores_{i}" for i in range(scores))]
        self.header = f"{','.join(names)}\n".encode()
        self.longest = _LONGEST_TEXTS + 32 * len(names)
        self._scores = scores
        labels = columns.labels if columns.labels is not None else [""] * columns.width
        # Index -1, no class, finds the last.
        self._classes = [*(f"{i},{_quoted(label)}" for i, label in enumerate(labels)), ","] if columns.top else [","]
        rank = rb",[0-9]*,%b,%b,%b" % (_TEXT.replace(b"(", b"(?:", 1), _NUMBER, _NUMBER)
        self._head = re.compile(rb"%b,%b(?:%b){%d}" % (_TEXT, _TEXT, rank, columns.top))

    def rows(self, answers: PredictionBatch) -> list[bytes]:
        """Return a line for each answer."""
        columns = [list(map(_quoted, answers.names)), list(map(_quoted, answers.errors))]
        scores = best_scores(answers)
        for rank in range(answers.best.shape[1]):
            columns.append([self._classes[i] for i in answers.best[:, rank].tolist()])
            columns.append(number_texts(scores[:, rank], _NO_NAN))
            columns.append(number_texts(answers.probabilities[:, rank], _NO_NAN))
        if self._scores:
            columns.append(row_texts(answers.scores.reshape(len(answers.names), -1), ",", _NO_NAN))
        return [f"{','.join(fields)}\n".encode(errors="surrogateescape") for fields in zip(*columns, strict=True)]

    def is_row(self, line: bytes) -> bool:
        """Return whether a line feed at the end of `line` ends the row, and not one within quotes."""
        return line.count(b'"') % 2 == 0

    def head(self, row: bytes) -> tuple[str, bool] | None:
        """Return a row's input name and whether it has an error; None if it is not a row of these columns."""
        found = self._head.match(row)
        if not found:
            return None
        scores = row[found.end() :]
        if scores.count(b",") != self._scores or scores.translate(None, _NUMBER_BYTES + b",") != b"\n":
            return None
        return _unquoted(found[1]), bool(found[2])

    def may_be_torn(self, tail: bytes) -> bool:
        """Return whether `tail` can be the beginning of a row."""
        return _TORN.fullmatch(tail) is not None


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def _unquoted(field: bytes) -> str:
    inner = field[1:-1].replace(b'""', b'"') if field.startswith(b'"') else field
    return inner.decode(errors="surrogateescape")
