"""Hostile pictures: the mutators for some seconds, and the fuzzer's own eyes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.fuzz import pictures
from tests.fuzz.pictures import AGREES, DECODED, NAME, examine, run, seeds
from tests.fuzz.worker import CRASH, FAILURES, OUTSIDE, REFUSED, WRONG
from tests.support.picture_files import every_kind
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.jpeg import jpeg_shape

NOT_FAST = ("cmyk.jpg", "turned.jpg")

pytest.importorskip("simplejpeg")
if jpeg_shape(every_kind()["colour.jpg"], 3) is None:
    pytest.skip("this Pillow is built with an older libjpeg-turbo, or another library", allow_module_level=True)


@pytest.mark.filterwarnings("ignore")  # Pillow's, of damaged metadata
def test_no_hostile_picture_does_harm(capfd):
    """The first pictures are the seeds themselves."""
    verdicts = []
    for number in range(80):
        found = examine(number, 4)
        assert found.verdict not in FAILURES, found
        verdicts.append(found.verdict)
    capfd.readouterr()  # libtiff writes there what it finds
    whole = [AGREES if name.endswith(("jpg", "jpeg")) and name not in NOT_FAST else DECODED for name in seeds()]
    assert verdicts[: len(whole)] == whole
    assert verdicts.count(REFUSED) > 4


@pytest.mark.slow(reason="more of the same, in processes of their own")
def test_no_hostile_picture_of_many_does_harm(tmp_path):
    record = tmp_path / "fuzz.json"
    arguments = ["--first", "80", "--cases", "3220", "--seed", "4"]
    code = run([*arguments, "--keep", str(tmp_path / "kept"), "--output", str(record)])
    found = json.loads(record.read_text())
    assert (code, found["failures"], found["cases"]) == (0, [], 3220)
    for verdict in (REFUSED, DECODED, AGREES):
        assert found["verdicts"][verdict] > 161


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
