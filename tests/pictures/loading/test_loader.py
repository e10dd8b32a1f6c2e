"""pictures/loading/loader.py: every sample of every file in some slot, whatever the threads do."""

import threading
import time
from queue import SimpleQueue

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from vgg16gpu.cli import cli
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.listing import list_files
from vgg16gpu.pictures.loading import pace
from vgg16gpu.pictures.loading.loader import InOrder, Loader
from vgg16gpu.pictures.reading import read_inputs
from vgg16gpu.pictures.slots import BufferPool, ordinary

SHAPE = (3, 16, 16)
SPEC = InputSpec(SHAPE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of many sizes, a broken one, and numbers of both kinds between them."""
    path = tmp_path_factory.mktemp("mixed")
    chance = np.random.default_rng(0)
    for i in range(40):
        pixels = chance.integers(0, 256, (*chance.integers(16, 60, 2), 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / f"{i:02}.{'jpg' if i % 3 else 'png'}")
    (path / "05x.jpg").write_text("no picture")
    np.save(path / "10n.npy", chance.standard_normal((70, *SHAPE), dtype=np.float32))
    np.save(path / "20n.npy", chance.integers(0, 256, (3, 16, 16, 3), dtype=np.uint8))
    numbers = chance.standard_normal((4, *SHAPE), dtype=np.float32)
    numbers[1, 0, 0, 0] = np.nan
    np.savez(path / "30n.npz", a=numbers, b=numbers[0])
    return path


def files_of(folder):
    return sorted(folder.iterdir())


def collect(loader, ring, *, prompt=True):
    """(name, bytes or problem) of all samples, in order; slots go back at once."""
    loader.start()
    ring.pin(lambda nbytes: np.zeros(nbytes, np.uint8), takes_pictures=False)
    order, found = InOrder(loader.first), []
    nbytes = {"uint8": 16 * 16 * 3, "float32": 4 * 16 * 16 * 3}
    for slot in loader:
        if slot is not None:
            for row in slot.rows:
                content = slot.buffer[row.offset : row.offset + nbytes[slot.element_type]].tobytes()
                order.add(row.file, row.sample, (row.name, content))
            for failure in slot.failures:
                order.add(failure.file, failure.sample, (failure.name, failure.problem))
            for end in slot.ends:
                order.end(*end)
            ring.give_back(slot)
        if slot is None or prompt:
            found += order.ready()
            loader.answered(order.file)
    loader.close()
    return found + order.ready()


def expected(folder):
    found = []
    for path in files_of(folder):
        if path.suffix == ".npz":
            found.append(None)
            continue
        try:
            found += [(item.name, item.array.tobytes()) for item in read_inputs([path], SPEC)]
        except Exception as error:
            found.append((str(path), str(error)))
    return found


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("nbytes", [4 * 16 * 16 * 3, 20_000])
@pytest.mark.parametrize("prompt", [True, False])
def test_everything_comes_once_and_in_order(folder, threads, nbytes, prompt):
    before = {*threading.enumerate()}  # other tests' too
    ring = BufferPool(nbytes, threads + 4)
    loader = Loader(list_files(files_of(folder)), SPEC, ring, threads)
    found = collect(loader, ring, prompt=prompt)
    numbers = [row for row in found if "30n.npz" in row[0]]
    others = [row for row in found if "30n.npz" not in row[0]]
    assert others == [row for row in expected(folder) if row is not None]
    assert [name.rsplit("/", 1)[1] for name, _ in numbers] == [
        "30n.npz[a][0]",
        "30n.npz[a][1]",
        "30n.npz[a][2]",
        "30n.npz[a][3]",
        "30n.npz[b]",
    ]
    assert [isinstance(content, str) for _, content in numbers] == [False, True, False, False, False]
    assert "NaN" in numbers[1][1]
    assert loader.decoded == 40
    assert not any(thread.name.startswith("vgg16gpu-decode") for thread in {*threading.enumerate()} - before)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_slot_that_comes_back_at_once_has_the_next_file(folder, rows):
    """There is one slot: a thread hands it over full, waits, and gets it again."""
    files = [path for path in files_of(folder) if path.suffix == ".jpg"]
    ring = BufferPool(20_000, 1, rows, room_nbytes=1 << 20)
    ring.pin(ordinary, takes_pictures=True)
    loader = Loader(list_files(files), SPEC, ring, 1)
    loader.start()
    found = []
    for slot in loader:
        assert slot is not None
        found += [(row.name, slot.buffer[row.offset : row.offset + row.nbytes].tobytes()) for row in slot.rows]
        ring.give_back(slot)
    loader.close()
    assert found == [(str(path), path.read_bytes()) for path in files if path.stem != "05x"]


def test_it_begins_behind_what_is_done(folder):
    files = files_of(folder)
    index = [path.name for path in files].index("10n.npy")
    ring = BufferPool(20_000, 6)
    whole = expected(folder)
    for first in ((index, 68), (index, 70), (index + 1, 0)):
        loader = Loader(list_files(files[: index + 3]), SPEC, ring := BufferPool(20_000, 6), 2, first)
        found = collect(loader, ring)
        before = index + first[1] if first[0] == index else index + 70
        assert found == whole[before : index + 70 + 2]


def test_few_files_are_begun_before_the_first_is_answered(folder):
    listing = list_files([path for path in files_of(folder) if path.suffix in (".png", ".jpg")])
    ring = BufferPool(20_000, 6)
    loader = Loader(listing, SPEC, ring, 2, window=8)
    loader.start()
    ring.pin(ordinary, takes_pictures=False)
    begun = 0
    for slot in loader:
        if slot is None:  # all wait for answers
            break
        begun = max(begun, *(row.file for row in slot.rows), *(failure.file for failure in slot.failures), begun)
        ring.give_back(slot)
    assert begun == 7
    loader.close()


def test_whether_there_is_anything_to_compute(folder, tmp_path):
    (tmp_path / "a.jpg").write_text("none")
    for paths, expected_row in (([tmp_path / "a.jpg"] * 3, False), ([tmp_path / "a.jpg", folder / "00.png"], True)):
        loader = Loader(list_files(paths), SPEC, BufferPool(20_000, 6), 2)
        loader.start()
        assert loader.has_row() is expected_row
        loader.close()


def within(seconds, function):
    """Return what a function gives, or the exception that it raises; a hang fails the test."""
    found = SimpleQueue()

    def call():
        try:
            found.put(function())
        except BaseException as error:
            found.put(error)

    threading.Thread(target=call, daemon=True).start()
    return found.get(timeout=seconds)


@pytest.fixture
def no_decoder(monkeypatch):
    """Fail each thread that decodes before it has taken a file."""

    def broken(*_):
        raise MemoryError("no memory for tables")

    monkeypatch.setattr("vgg16gpu.pictures.decoding.Decoder.__init__", broken)


@pytest.mark.usefixtures("no_decoder")
@pytest.mark.parametrize("threads", [1, 3])
def test_a_thread_that_cannot_begin_is_told(folder, threads):
    loader = Loader(list_files([folder / "00.png", folder / "03.png"]), SPEC, BufferPool(20_000, 6), threads)
    loader.start()
    assert within(30, loader.has_row) is True  # so that somebody reads on
    found = within(30, lambda: list(loader))
    assert isinstance(found, MemoryError)
    assert "no memory for tables" in str(found)
    within(30, loader.close)
    assert loader.seconds.decoding == 0


@pytest.mark.usefixtures("no_decoder")
def test_infer_ends_with_a_line_where_a_thread_cannot_begin(folder, tmp_path):
    options = ["--model", "digits", "--device", "cpu", "--output", str(tmp_path / "r.csv"), "-q"]
    done = within(60, lambda: CliRunner().invoke(cli, ["infer", str(folder / "00.png"), *options]))
    assert done.exit_code == 2
    assert "not enough memory: no memory for tables" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("slow", "begun"), [(0.0, 4), (60.0, 1)])
def test_one_thread_begins_and_all_join_it_where_it_is_slow(folder, monkeypatch, slow, begun):
    monkeypatch.setattr(pace, "PICTURES", 5)
    monkeypatch.setattr(pace, "SLOW", slow)  # seconds a picture
    before = threading.active_count()
    loader = Loader(list_files(files_of(folder)), SPEC, BufferPool(20_000, 8), 4, begins_alone=True)
    found = collect(loader, loader.ring)
    assert [row for row in found if "30n.npz" not in row[0]] == [row for row in expected(folder) if row is not None]
    assert loader.threads == begun
    assert threading.active_count() == before


def test_closing_in_the_middle_ends_all_threads(folder):
    before = threading.active_count()
    for threads in (1, 5):
        loader = Loader(list_files(files_of(folder)), SPEC, BufferPool(800, 2), threads)
        loader.start()
        next(iter(loader))
        loader.close()
        loader.close()
        time.sleep(0.01)
        assert threading.active_count() == before


def test_a_file_that_has_become_shorter_is_a_row_that_says_so(tmp_path):
    """A run goes on behind five rows of a file that has three samples by now."""
    np.save(tmp_path / "a.npy", np.zeros((3, *SHAPE), np.float32))
    np.save(tmp_path / "b.npy", np.zeros((1, *SHAPE), np.float32))
    loader = Loader(
        list_files([tmp_path / "a.npy", tmp_path / "b.npy"]), SPEC, ring := BufferPool(20_000, 6), 1, (0, 5)
    )
    (name, problem), (second, _) = collect(loader, ring)
    assert (name, second) == (str(tmp_path / "a.npy"), str(tmp_path / "b.npy"))
    assert "has fewer samples than there are rows of it" in problem
