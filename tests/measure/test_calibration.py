"""measure/calibration.py: whole processes, whose scales must be the same."""

import json

import pytest

from tests.measure import calibration
from tests.support.small_photos import small_photos


@pytest.fixture
def words(tmp_path):
    folder = small_photos(tmp_path / "pictures", 12)
    return ["digits", "--images", folder, "--device", "cpu", "--limit", 10, "--output", tmp_path / "found.json"]


@pytest.mark.slow(reason="of a measure that authors run")
def test_whole_processes_choose_the_same_scales(words):
    assert calibration.main([*map(str, words), "--repeats", "2"]) == 0
    found = json.loads(words[-1].read_text())
    assert len(found["calibrate_s"]) == 2
    assert min(found["calibrate_s"]) > 0.1  # a process has been started
    assert (found["images"], found["scales_are_equal"]) == (10, True)
    assert found["environment"]["device"]["kind"] == "cpu"


def test_other_scales_fail_it(words, monkeypatch):
    digests = iter("aab")
    monkeypatch.setattr(calibration, "_run", lambda *_: calibration.Run(1.0, next(digests)))
    assert calibration.main([*map(str, words), "--repeats", "2"]) == 1
    assert json.loads(words[-1].read_text())["scales_are_equal"] is False
