"""bench/pipeline/process_loading.py: the rate of the processes that decode for a GPU, without their start."""

from dataclasses import replace

import pytest

from tests.bench.pipeline.test_stages import COUNT
from vgg16gpu.bench.pipeline.process_loading import measure_process_loading
from vgg16gpu.bench.pipeline.stage import Place
from vgg16gpu.errors import InputError
from vgg16gpu.runtime.answers import folder


@pytest.fixture
def many(work, monkeypatch):
    """The pictures again and again, in slots of two."""
    monkeypatch.setattr(folder, "MANY", 1)
    monkeypatch.setattr(folder, "ROWS", 2)
    monkeypatch.setattr(folder, "default_threads", lambda **_: 5)
    files = work.listing.files * (1 + 60 // COUNT)
    return replace(work, listing=replace(work.listing, files=files))


def test_all_pictures_by_processes(many):
    found = measure_process_loading(many)
    assert (found.stage, found.place, found.counts) == ("decoding, by processes", Place.CORES, True)
    assert (found.pictures, found.threads, found.decode) == (len(many.files), 5, "cpu")
    assert len(found.seconds) == len(found.cpu_seconds) == many.wanted.repeats
    assert all(seconds > 0 for seconds in (*found.seconds, *found.cpu_seconds))


def test_who_has_no_processes_has_no_rate(work):
    assert measure_process_loading(work) is None


def test_too_few_pictures_are_refused(many):
    few = replace(many, listing=replace(many.listing, files=many.listing.files[:6]))
    with pytest.raises(InputError, match="too few pictures"):
        measure_process_loading(few)
