"""The cache of compiled kernels: keys, damage, hostile or unusable folders, parallel processes."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vgg16gpu.devices import cache, own_files
from vgg16gpu.devices.cache import KernelCache

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that does not exist yet."""
    monkeypatch.setattr(cache, "_fallbacks", {})
    chosen = tmp_path / "cache"
    monkeypatch.setenv("VGG16GPU_CACHE", str(chosen))
    return chosen


class Builder:
    """Writes `content`, and counts how often."""

    def __init__(self, content: bytes = b"compiled") -> None:
        self.content = content
        self.calls = 0

    def __call__(self, path: Path) -> None:
        self.calls += 1
        path.write_bytes(self.content)


def fetch(builder: Callable[[Path], None], *parts: bytes | str) -> Path:
    return KernelCache("cpu").fetch(parts or ("source",), ".so", builder).path


def test_every_part_of_the_key_counts_and_so_does_where_it_ends() -> None:
    builder = Builder()
    keys: list[tuple[bytes | str, ...]] = [("a", "bc"), ("ab", "c"), ("abc",), ("abc", ""), (b"abd",)]
    assert len({fetch(builder, *key) for key in keys}) == len(keys)
    KernelCache("cuda").fetch(("abc",), ".so", builder)
    KernelCache("cpu").fetch(("abc",), ".cubin", builder)
    assert builder.calls == len(keys) + 2


def test_the_folder_and_its_files_are_ours_alone(folder: Path) -> None:
    before = os.umask(0)
    try:
        path = fetch(Builder())
    finally:
        os.umask(before)
    assert [stat.S_IMODE(place.stat().st_mode) for place in (folder, folder / "cpu", path)] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("damaged", [b"", b"compil", b"compiled!", b"Compiled"])
def test_a_damaged_entry_is_rebuilt(damaged: bytes) -> None:
    builder = Builder()
    path = fetch(builder)
    path.write_bytes(damaged)
    assert fetch(builder).read_bytes() == b"compiled"
    assert builder.calls == 2
    assert len(KernelCache("cpu").entries()) == 1


def test_an_entry_that_the_check_refuses_is_rebuilt() -> None:
    old, new = Builder(b"for an older card"), Builder(b"for this card")
    fetch(old)
    found = KernelCache("cpu").fetch(("source",), ".so", new, lambda content: b"this" in content)
    assert found.content == found.path.read_bytes() == b"for this card"
    assert fetch(old) == found.path


def test_a_lookup_lists_no_folder_again_and_sees_what_others_did_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    builder, listings = Builder(), []
    path = fetch(builder)
    names = own_files.OwnFolder.names
    monkeypatch.setattr(own_files.OwnFolder, "names", lambda folder: listings.append(folder) or names(folder))
    assert [fetch(builder) for _ in range(3)] == [path] * 3
    assert (builder.calls, listings) == (1, [])
    path.unlink()
    assert fetch(builder) == path
    assert builder.calls == 2
    another = path.with_name(f"{'0' * 32}{path.name[32:]}")
    another.write_bytes(b"compiled")
    monkeypatch.setattr(KernelCache, "_key", lambda *_: "0" * 32)
    assert fetch(builder) == another
    assert builder.calls == 2


def test_an_interrupted_build_leaves_nothing_that_counts(folder: Path) -> None:
    def interrupted(path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(interrupted)
    assert list((folder / "cpu").iterdir()) == []


def test_entries_size_and_clear(folder: Path) -> None:
    kernels = KernelCache("cpu")
    assert (kernels.entries(), kernels.size(), kernels.clear()) == ((), 0, 0)
    fetch(Builder(b"12345"), "one")
    fetch(Builder(b"123"), "two")
    (folder / "cpu" / f"{cache._TEMPORARY}left.so").write_bytes(b"of a killed process")
    assert sorted(entry.nbytes for entry in kernels.entries()) == [3, 5]
    assert all(entry.modified > 0 and entry.path.is_file() for entry in kernels.entries())
    assert kernels.size() == 8
    assert KernelCache("cuda").size() == 0
    assert kernels.clear() == 2
    assert list(kernels.folder.iterdir()) == []


def uses_a_private_folder(caplog: pytest.LogCaptureFixture, refused: Path, message: str) -> None:
    builder = Builder()
    caplog.clear()
    first, again, another = [fetch(builder, *key) for key in ("a", "a", "b")]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert re.search(message, record.getMessage())
    assert "set VGG16GPU_CACHE to a folder of your own" in record.getMessage()
    assert first.read_bytes() == b"compiled"
    assert refused not in first.parents
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    assert (again, another.parent, builder.calls) == (first, first.parent, 2)  # kept within the process


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
@pytest.mark.parametrize("inner", ["", "cpu"])
def test_a_folder_that_others_can_write_is_refused(
    caplog: pytest.LogCaptureFixture, folder: Path, mode: int, inner: str
) -> None:
    (folder / "cpu").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (folder / inner).chmod(mode)
    uses_a_private_folder(
        caplog, folder, rf"can be written by others \(mode {mode:o}\), so code .*; delete the folder, .* compiled anew"
    )
    assert list((folder / "cpu").iterdir()) == []


@root_only
def test_a_folder_of_somebody_else_is_refused(caplog: pytest.LogCaptureFixture, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    uses_a_private_folder(caplog, folder, "belongs to user 12345, not to user 0")


def test_an_unwritable_folder_costs_one_warning(
    caplog: pytest.LogCaptureFixture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o500)
    if os.geteuid() == 0:  # root may write everywhere but on a read-only file system, where access says no, too
        monkeypatch.setattr(os, "access", lambda path, _: folder not in (path, *path.parents))
    uses_a_private_folder(caplog, folder, "is not writable")


def test_an_impossible_folder_costs_one_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    for place, message in ((tmp_path / "file", "cannot be created"), (tmp_path / "file" / "cache", "Not a directory")):
        monkeypatch.setenv("VGG16GPU_CACHE", str(place))
        uses_a_private_folder(caplog, place, message)


def test_the_private_folder_goes_with_the_process(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from vgg16gpu.devices.cache import KernelCache\n"
        "import os\n"
        "path = KernelCache('cpu').fetch(['a'], '.so', lambda path: path.write_bytes(b'x') and None).path\n"
        "child = os.fork()\n"
        "if child == 0: raise SystemExit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(path, path.exists())"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(Path(cache.__file__).parents[2])},
        check=True,
    )
    path, exists = done.stdout.split()
    assert exists == "True"
    assert scratch in Path(path).parents
    assert list(scratch.iterdir()) == []


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGG16GPU_CACHE", "relative")
    assert cache.cache_dir() == Path.cwd() / "relative"
    monkeypatch.delenv("VGG16GPU_CACHE")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache.cache_dir() == Path("/caches/vgg16gpu")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache.cache_dir() == Path("/home/somebody/.cache/vgg16gpu")


def test_of_processes_that_want_the_same_one_builds(folder: Path, tmp_path: Path) -> None:
    """And the others see what it builds whole, in this process as in others."""
    code = (
        "import sys, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from pathlib import Path\n"
        "from vgg16gpu.devices.cache import KernelCache\n"
        "def build(path):\n"
        "    with open(sys.argv[1], 'a') as log: log.write('built\\n')\n"
        "    path.write_bytes(b'on')\n"
        "    time.sleep(0.2)\n"
        "    path.write_bytes(b'once')\n"
        "def fetch(number):\n"
        "    return KernelCache('cpu').fetch([str(number % 3)], '.so', build).content\n"
        "with ThreadPoolExecutor(6) as pool:\n"
        "    assert list(pool.map(fetch, range(6))) == [b'once'] * 6\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(cache.__file__).parents[2])}
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path / "log")]
    running = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "built\n" * 3
    assert len(list((folder / "cpu").iterdir())) == 3


def test_a_killed_builder_holds_nobody_up() -> None:
    code = (
        "import os\n"
        "from vgg16gpu.devices.cache import KernelCache\n"
        "KernelCache('cpu').fetch(['source'], '.so', lambda _: os.abort())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(cache.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode < 0
    assert fetch(Builder()).read_bytes() == b"compiled"


# What others may have put there while they could


def planted(folder: Path, content: bytes = b"planted", key: str = "") -> Path:
    """An entry as its name wants it: the key of what is built, the digest of what is in it."""
    key = key or fetch(Builder()).name.partition("-")[0]
    KernelCache("cpu").clear()
    path = folder / "cpu" / f"{key}-{cache._digest(content)}.so"
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_a9_an_entry_of_ours_is_taken(folder: Path) -> None:
    planted(folder)
    assert fetch(Builder()).read_bytes() == b"planted"  # the control: its name is right


@root_only
def test_a9_an_entry_of_somebody_else_is_not_taken_whatever_mode_the_folder_has_now(folder: Path) -> None:
    path = planted(folder)
    os.chown(path, 12345, 12345)
    assert fetch(Builder()).read_bytes() == b"compiled"
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a9_nor_is_one_that_others_can_write(folder: Path, mode: int) -> None:
    planted(folder).chmod(mode)
    assert fetch(Builder()).read_bytes() == b"compiled"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "dangling"])
def test_a9_nor_what_is_no_file_of_its_own(folder: Path, tmp_path: Path, kind: str) -> None:
    path = planted(folder)
    path.unlink()
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(b"planted")
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "pipe":
        os.mkfifo(path)  # who opens it to read waits for a writer
    else:
        path.mkdir()
    assert fetch(Builder()).read_bytes() == b"compiled"


def test_a9_a_linked_lock_or_a_pipe_holds_nobody_up(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / ".cpu.lock")
    assert fetch(Builder()).read_bytes() == b"compiled"
    (folder / ".cpu.lock").unlink()
    (folder / ".cpu.lock").symlink_to(tmp_path / "made")
    assert fetch(Builder(), "another").read_bytes() == b"compiled"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("whose", ["of kinds", "of one kind"])
def test_a9_what_is_loaded_is_what_was_checked(folder: Path, tmp_path: Path, whose: str) -> None:
    """Whoever can rename a folder above puts another one in its place between the check and the load."""
    found = KernelCache("cpu").fetch(["source"], ".so", Builder())
    place = folder if whose == "of kinds" else folder / "cpu"
    place.rename(tmp_path / "moved")
    (folder / "cpu").mkdir(parents=True)
    found.path.write_bytes(b"swapped!")
    assert found.code.read_bytes() == found.content == b"compiled"


def test_a9_a_link_in_place_of_the_inner_folder_is_refused(
    caplog: pytest.LogCaptureFixture, folder: Path, tmp_path: Path
) -> None:
    folder.mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (folder / "cpu").symlink_to(tmp_path / "elsewhere")
    uses_a_private_folder(caplog, folder, "has no usable folder 'cpu'")


def test_a9_a_folder_that_is_deleted_is_made_anew(folder: Path) -> None:
    builder = Builder()
    first = fetch(builder)
    shutil.rmtree(folder)
    assert fetch(builder) == first
    assert first.read_bytes() == b"compiled"
    assert builder.calls == 2


def test_a9_folders_stay_open_in_small_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(40):
        monkeypatch.setenv("VGG16GPU_CACHE", str(tmp_path / str(number)))
        fetch(Builder())
    assert len(list(Path("/proc/self/fd").iterdir())) <= count + own_files._MOST_KEPT
