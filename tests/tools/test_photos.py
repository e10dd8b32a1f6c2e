"""tools/recording/photos.py: photographs of the wanted size, the same each time."""

import io

import pytest
from PIL import Image
from recording import photos
from recording.photos import Wanted, main, name_of, photograph


@pytest.fixture(autouse=True)
def small_sources(monkeypatch):
    """Two pictures that are made, whatever is installed here."""
    monkeypatch.setattr(photos, "SHIPPED", (("no_such_package", "data"),))
    monkeypatch.setattr(photos, "MADE", 2)
    monkeypatch.setattr(photos, "_SIDES", (480, 640))
    photos._sources.cache_clear()
    yield
    photos._sources.cache_clear()


def opened(data):
    return Image.open(io.BytesIO(data))


def test_size_of_picture_and_file():
    found = [photograph(number, Wanted(500, 375, (42, 60))) for number in range(3)]
    assert all(42 <= len(data) / 1024 <= 60 for data in found)
    assert {(opened(data).size, opened(data).mode, opened(data).format) for data in found} == {
        ((500, 375), "RGB", "JPEG")
    }
    assert len(set(found)) == 3


def test_a_size_that_no_quality_gives_is_come_near_to():
    large, small = (photograph(0, Wanted(96, 72, kilobytes, "L")) for kilobytes in ((500, 600), (0.1, 0.2)))
    assert len(large) > len(small)
    assert opened(large).mode == "L"


def test_the_same_each_time():
    wanted = Wanted(96, 72, (2, 4), "L")
    first = photograph(5, wanted)
    photos._sources.cache_clear()
    assert photograph(5, wanted) == first


def test_the_last_file_is_written_last(tmp_path, monkeypatch):
    monkeypatch.setattr(photos, "_TOGETHER", 2)
    main([str(tmp_path), "--count", "5", "--size", "48x36", "--kilobytes", "0.5", "4", "--grey"])
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == [name_of(number) for number in range(5)]
    assert max(paths, key=lambda path: path.stat().st_mtime_ns) == paths[-1]
