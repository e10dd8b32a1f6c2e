"""Hostile pictures: the mutators for some seconds, and the fuzzer's own eyes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.fuzz import pictures
from tests.fuzz.pictures import AGREES, DECODED, NAME, examine, picture_case, run, seeds
from tests.fuzz.worker import CRASH, OUTSIDE, REFUSED, WRONG
from tests.support.picture_files import every_kind
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.jpeg import jpeg_shape

pytest.importorskip("simplejpeg")
if jpeg_shape(every_kind()["colour.jpg"], 3) is None:
    pytest.skip("this Pillow is built with an older libjpeg-turbo, or another library", allow_module_level=True)


def test_cases_are_what_their_numbers_say():
    for number in (0, 17, 500, 1234):
        assert picture_case(number, 3) == picture_case(number, 3)
    assert picture_case(500, 3) != picture_case(500, 4)
    changes = {change for number in range(2000) for change in picture_case(number)[0].split(", ")[1:]}
    assert len(changes) == 15


@pytest.mark.parametrize("number", range(len(seeds())), ids=list(seeds()))
def test_seeds_are_whole(number):
    name = list(seeds())[number]
    fast = name.endswith(("jpg", "jpeg")) and name not in ("cmyk.jpg", "turned.jpg")
    assert examine(number, 0).verdict == (AGREES if fast else DECODED)


@pytest.mark.parametrize(
    ("first", "cases"), [(0, 80), pytest.param(80, 3220, marks=pytest.mark.slow(reason="more of the same"))]
)
def test_no_hostile_picture_does_harm(tmp_path, first, cases):
    record = tmp_path / "fuzz.json"
    arguments = ["--first", str(first), "--cases", str(cases), "--seed", "4"]
    code = run([*arguments, "--keep", str(tmp_path / "kept"), "--output", str(record)])
    found = json.loads(record.read_text())
    assert found["failures"] == []
    assert code == 0
    assert found["cases"] == cases
    for verdict in (REFUSED, DECODED, AGREES):
        assert found["verdicts"][verdict] > cases // 20


def refuse(*_):
    raise InputError(f"'{NAME}' is refused")


def crash(*_):
    return {}["key"]


def open_another(*_):
    with open("/etc/passwd"):  # noqa: PTH123
        pass
    raise InputError(f"'{NAME}' is refused")


@pytest.mark.parametrize(
    ("decode", "by_pillow", "verdict", "reason"),
    [
        (refuse, refuse, REFUSED, "is refused"),
        (crash, refuse, CRASH, "KeyError at test_pictures.py"),
        (open_another, refuse, OUTSIDE, "/etc/passwd"),
        (refuse, None, WRONG, "other pixels"),
        (None, refuse, WRONG, "pixels that Pillow refuses"),
        (lambda *_: np.zeros((24, 32, 3), np.uint8), None, WRONG, "other pixels"),
    ],
)
def test_the_fuzzer_sees(monkeypatch, decode, by_pillow, verdict, reason):
    if decode:
        monkeypatch.setattr(pictures, "decode", decode)
    if by_pillow:
        monkeypatch.setattr(pictures, "decode_by_pillow", by_pillow)
    found = examine(0, 0)
    assert (found.verdict, found.reason.partition(":")[0]) == (verdict, reason)


def test_the_fuzzer_sees_another_pixel_of_the_kernel(monkeypatch):
    by_kernel = pictures.Kernel.__call__

    def another(kernel, found):
        made = by_kernel(kernel, found)
        made[-1, -1, -1] ^= 1
        return made

    monkeypatch.setattr(pictures.Kernel, "__call__", another)
    found = examine(0, 0)
    assert (found.verdict, found.reason) == (WRONG, "the kernel resizes to other pixels")
