"""io/text.py: numbers in text, and messages that say where and what would fit."""

import time

import numpy as np
import pytest

from vgg16gpu.errors import InputError
from vgg16gpu.io.text import parse_numbers, shape_samples


def test_numbers_in_every_spelling():
    text = b"\xef\xbb\xbf1 -2.5\t+3e2\r\n\n .5  1.e-3 nan -Inf"
    expected = np.array([1, -2.5, 300, 0.5, 0.001, np.nan, -np.inf], np.float32)
    np.testing.assert_array_equal(parse_numbers(text, "a.txt"), expected)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"1 2 x 4", "line 1, column 5: 'x'"),
        (b"1 2\n3 4,5", "line 2, column 3: '4,5'"),
        (b"1\n\n  1-2", "line 3, column 3: '1-2'"),
        (b"1 1.5.5", "line 1, column 3: '1.5.5'"),
        (b"1_000", "line 1, column 1: '1_000'"),
        (b"0x10", "line 1, column 1: '0x10'"),
        (b"1 1.5abc", "line 1, column 3: '1.5abc'"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "line 1, column 1: '\ufffdPNG'"),
        ("1 2".encode("utf-16-le"), "line 1, column 1"),
        (b"7 " + b"y" * 1000, f"line 1, column 3: '{'y' * 24}'..."),
    ],
)
def test_the_first_thing_that_is_no_number_is_named(text, place):
    with pytest.raises(InputError) as caught:
        parse_numbers(text, "a.txt")
    assert place in str(caught.value)
    assert "a.txt" in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_texts_of_other_systems(encoding):
    """As PowerShell's > writes them."""
    found = parse_numbers("1 2.5\r\n-3e2\r\n".encode(encoding), "a.txt")
    assert found.tolist() == [1, 2.5, -300]
    count = 700_000 if encoding == "utf-16" else 1000
    assert parse_numbers(("0 " * count + "1").encode(encoding), "a.txt").size == count + 1


@pytest.mark.parametrize("word", [b"9" * 10**6 + b"x", b"1." + b"9" * 10**6 + b"x", b"1e" + b"9" * 10**6 + b"x"])
def test_a_word_of_a_megabyte_takes_no_time(word):
    start = time.process_time()
    with pytest.raises(InputError, match=r"line 1, column 3: .* is not a number"):
        parse_numbers(b"1 " + word, "a.txt")
    assert time.process_time() - start < 2


def test_wrong_count_says_which_sizes_would_fit():
    numbers = np.zeros(10 * 3 * 244 * 244, np.float32)
    with pytest.raises(InputError) as caught:
        shape_samples(numbers, (3, 224, 224), "input.txt", open_size=True)
    message = str(caught.value)
    assert "1786080 numbers" in message
    assert "150528 (3x224x224)" in message
    assert "10 of 3x244x244 (--size 244)" in message
    with pytest.raises(InputError, match=r"10 of 3x244x244.*size of this model is fixed") as caught:
        shape_samples(numbers, (3, 224, 224), "input.txt")
    assert "--size" not in str(caught.value)
