"""io/foreign: numbers, JSON and text of others within their bounds, and any failure of a reader as one error."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from vgg16gpu.errors import DeviceError, InputError
from vgg16gpu.io.foreign.arrays import reading
from vgg16gpu.io.foreign.documents import DEEPEST, parse_json, read_json
from vgg16gpu.io.foreign.lines import decode_text, read_bytes, read_text
from vgg16gpu.io.foreign.numbers import digits_value, real_value, whole_number, whole_value

HOSTILE_NUMBERS = [
    "",
    " 1",
    "1 ",
    "+1",
    "-1",
    "01",
    "00",
    "1.0",
    "1e2",
    "0x1",
    "1_0",
    "\u0661",
    "²",
    "101",
    "9" * 5000,
    "0" * 9 + "1",
]


@pytest.mark.parametrize("text", HOSTILE_NUMBERS, ids=range(len(HOSTILE_NUMBERS)))
def test_no_numbers(text: str) -> None:
    with pytest.raises(InputError, match=r"^the length is .*; accepted is a whole number from 0 to 100, in digits$"):
        whole_number(text, "the length", 0, 100)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("007", 7), ("100", 100), ("0" * 5000 + "9", 9), ("101", None), ("9" * 5000, None), ("-1", None)]
    + [(text, None) for text in ("", " 1", "1_0", "\u0663", "\u00b2", "1.0", "0x1", "1\n")],
)
def test_digits(text: str, value: int | None) -> None:
    assert digits_value(text, 100) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0.0), ("-1.5", -1.5), ("+.5", 0.5), ("2.", 2.0), ("1e2", 100.0), ("1E-400", 0.0), ("100.5", None)]
    + [
        (text, None)
        for text in ("", "nan", "inf", "-Infinity", "1e400", "1_0", " 1", "\u0663", "0x1p3", "1e", ".", "9" * 400)
    ],
)
def test_decimals(text: str, value: float | None) -> None:
    assert real_value(text, 100.0) == value


NO_WHOLE_VALUES = [None, True, 1.0, "1", [], -1, 101, 10**5000, float("nan")]


@pytest.mark.parametrize("value", NO_WHOLE_VALUES, ids=range(len(NO_WHOLE_VALUES)))
def test_no_whole_values(value: object) -> None:
    assert whole_value(100, "the length", 0, 100) == 100
    with pytest.raises(InputError, match=r"^the length is .*; accepted is a whole number from 0 to 100$"):
        whole_value(value, "the length", 0, 100)


def test_ten_million_digits_take_no_time() -> None:
    start = time.process_time()
    with pytest.raises(InputError):
        whole_number("9" * 10**7, "it", 0, 100)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("value", [None, [], {"a": [1, 2.5, "[[[["]}, 'x\\"[', [[]] * 1000])
def test_json(value: object) -> None:
    assert parse_json(json.dumps(value), "it") == value
    assert parse_json(json.dumps(value).encode("utf-16"), "it") == value


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_json(opening: str, closed: bool) -> None:
    closing = "]" if opening == "[" else "}"
    inner = opening * 100_000 + ("1" + closing * 100_000 if closed else "")
    with pytest.raises(InputError, match=rf"^it is JSON with more than {DEEPEST} brackets"):
        parse_json(inner, "it")
    exact = opening * DEEPEST + "1" + closing * DEEPEST
    assert parse_json(exact, "it")
    with pytest.raises(InputError, match=r"^it is JSON with more"):
        parse_json(opening + exact + closing, "it")
    flat = ["[" * 99 + '"\\', *[[{}, {"]": "\\"}]] * 1000]
    assert parse_json(json.dumps(flat), "it") == flat


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe\xff", b"[1,]", b"9" * 4301, b'"\\ud8', b"\x00\x00", "{'a': 1}"])
def test_no_json(text: bytes | str) -> None:
    with pytest.raises(InputError, match=r"^it is not JSON: ."):
        parse_json(text, "it")


def test_json_is_bounded_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_text("[" + "1," * 1000 + "1]")
    assert len(read_json(path)) == 1001
    with pytest.raises(InputError, match=r"more than 1,000 bytes"):
        read_json(path, most_bytes=1000)
    with pytest.raises(InputError, match=r"^'/dev/zero' has more than"):
        read_json(Path("/dev/zero"), most_bytes=10_000)
    with pytest.raises(InputError, match=r"'.*missing' cannot be read: No such file"):
        read_json(tmp_path / "missing")
    with pytest.raises(InputError, match=r"cannot be read: Is a directory"):
        read_json(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_text(encoding: str, end: str) -> None:
    assert decode_text(end.join(["ä.png", " b ", ""]).encode(encoding), "it") == "ä.png\n b \n"


def test_text_of_other_bytes_is_a_name_of_a_file() -> None:
    assert os.fsencode(decode_text(b"\xff.png\n", "it")) == b"\xff.png\n"
    with pytest.raises(InputError, match=r"^it is no text of utf-8: invalid start byte at byte 0$"):
        decode_text(b"\xff.png\n", "it", errors="strict")


@pytest.mark.parametrize("data", [b"PK\x03\x04\0\0", b"\xff\xfe\0\0a\0\0\0", b"\xff\xfea", b"a\0b"])
def test_no_text(data: bytes) -> None:
    with pytest.raises(InputError, match=r"^it (is|has) "):
        decode_text(data, "it")


def test_pipes_are_read_to_their_end() -> None:
    source, target = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(target, b"a\r\nb"), os.close(target)))
    writer.start()
    assert read_text(Path(f"/dev/fd/{source}")) == "a\nb"
    writer.join()
    os.close(source)


def test_files_without_an_end_are_refused() -> None:
    with pytest.raises(InputError, match=r"^the list has more than 4,096 bytes"):
        read_bytes(Path("/dev/zero"), "the list", 4096)
    with pytest.raises(InputError, match=r"^the list cannot be read: .*null byte"):
        read_bytes(Path("a\0b"), "the list")


@pytest.mark.parametrize(
    "error",
    [MemoryError(), OverflowError("large"), RecursionError("deep"), ValueError(), KeyError("k"), OSError(5, "I/O")],
)
def test_failures_of_readers(error: Exception) -> None:
    with pytest.raises(InputError, match=r"^'a.npy' cannot be read: \S") as found, reading("'a.npy'"):
        raise error
    assert found.value.__cause__ is error
    assert "\n" not in str(found.value)


def test_what_is_ours_passes() -> None:
    with pytest.raises(DeviceError, match=r"^gone$"), reading("x"):
        raise DeviceError("gone")
    with pytest.raises(KeyboardInterrupt), reading("x"):
        raise KeyboardInterrupt
    with pytest.raises(InputError, match=r"more memory than there is$"), reading("x"):
        np.zeros(2**62, np.uint8)
