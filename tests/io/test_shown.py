"""What messages show of things of any kind and size."""

import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from vgg16gpu.io.shown import LONGEST, printable, printable_lines, shown

SHOWN = "caf\u00e9 \U0001f600 \U0001f469\u200d\U0001f680 \u732b\u202f.png"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b.png", "a b.png"),
        (SHOWN, SHOWN),
        ("new\nline\r\t.png", r"new\nline\r\t.png"),
        ("\x1b[31mred\x9b", r"\x1b[31mred\x9b"),
        ("bad\udcff.png", r"bad\xff.png"),
        ("gpj.\u202egnp", r"gpj.\u202egnp"),
        ("\ud800", r"\ud800"),
        ("\\n", "\\n"),
    ],
)
def test_text_is_one_printable_line(text, expected):
    assert printable(text) == expected
    assert printable(expected) == expected
    expected.encode()


def test_long_text_keeps_its_ends():
    text = printable("a" * 10**6 + "b" * 10**6)
    assert LONGEST <= len(text) <= LONGEST + 10
    assert text.startswith("aaa")
    assert text.endswith("bbb")
    assert printable_lines("one\n\ttwo\x07") == "one\n        two\\x07"


class Rude:
    def __repr__(self):
        raise AssertionError("nobody asked")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "None"),
        (3, "3"),
        (True, "True"),
        (1.5, "1.5"),
        ("cuda:x", "'cuda:x'"),
        ((224, "x"), "(224, 'x')"),
        (Path("a/b"), "'a/b'"),
        (b"12345", "5 bytes"),
        (bytearray(7), "7 bytes"),
        (np.zeros((2, 3), np.uint8), "ndarray of uint8 (2, 3)"),
        (np.int64(4), repr(np.int64(4))),
        (onnx.ModelProto(), "an object of type onnx.onnx_ml_pb2.ModelProto"),
        (Rude(), f"an object of type {__name__}.Rude"),
    ],
)
def test_values(value, expected):
    assert shown(value) == expected


def test_large_values_are_short_and_cost_nothing():
    assert shown(10**5000) == "a number of 16,610 bits"  # which Python itself refuses to write out
    large = [b"x" * 10**8, "y" * 10**8, np.str_("z" * 10**6), ["a" * 10**6] * 1000, {"k" * 10**6: [[["deep"]]]}]
    start = time.perf_counter()
    for value in large:
        assert len(shown(value)) <= LONGEST
    assert time.perf_counter() - start < 1
