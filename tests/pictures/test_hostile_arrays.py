"""Hostile .npy, .npz and .txt files: each costs its own row, those behind it are computed, and memory is bounded."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.hostile_arrays import SHAPE, described, good_array, hostile_arrays, npy, npz
from vgg16gpu.cli import cli
from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign import arrays
from vgg16gpu.io.foreign.arrays import read_npy, read_npz
from vgg16gpu.io.results import read_scores
from vgg16gpu.pictures.inputs import InputSpec, each_sample, samples

FILES = hostile_arrays()
SPEC = InputSpec(SHAPE)


@pytest.mark.parametrize("name", FILES)
def test_each_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(FILES[name])
    found = list(each_sample(name, SPEC))
    assert len(found) == 1
    assert isinstance(found[0][1], InputError)
    assert str(found[0][1]).startswith(f"'{name}")
    assert "\n" not in str(found[0][1])
    assert len(str(found[0][1])) < 1200
    with pytest.raises(InputError):
        list(samples(name, SPEC))
    assert not Path("harmed").exists()


def test_each_costs_its_own_row(tmp_path: Path) -> None:
    """All of them between inputs that can be read, whose rows are those of a run without them."""
    place = tmp_path / "inputs"
    place.mkdir()
    good = []
    for number, (name, data) in enumerate(FILES.items()):
        (place / f"{number:03}-{name}").write_bytes(data)
        good.append(place / f"{number:03}-z.npy")
        np.save(good[-1], good_array(number / 100))
    rows = _rows(tmp_path / "all.csv", sorted(place.iterdir()), 1)
    assert len(rows) == 2 * len(FILES)
    assert [row["input"] for row in rows if not row["error"]] == list(map(str, good))
    assert [row for row in rows if not row["error"]] == _rows(tmp_path / "good.csv", good, 0)


def _rows(output: Path, files: list[Path], code: int) -> list[dict[str, str]]:
    options = ["--model", "digits", "--device", "cpu", "--output", str(output), "--workers", "2", "-q"]
    (output.parent / "list").write_text("\n".join(map(str, files)))
    done = CliRunner().invoke(cli, ["infer", *options, "--files-from", str(output.parent / "list")])
    assert done.exit_code == code, done.output
    return list(csv.DictReader(output.read_text().splitlines()))


def test_a_member_that_is_none_costs_its_own_row(tmp_path: Path) -> None:
    """Members behind it are read, and a run that goes on behind it finds its place."""
    path = tmp_path / "a.npz"
    members = {"a.npy": npy(good_array(1)), "notes": b"hello", "b.npy": npy(good_array(2)), "c.npy": b"", "d": b"x"}
    path.write_bytes(npz({**members, "e.npy": npy([good_array(3), good_array(4)])}))
    found = list(each_sample(str(path), SPEC))
    keys = ["a", "notes", "b", "c", "d", "e][0", "e][1"]
    assert [name for name, _ in found] == [f"{path}[{key}]" for key in keys]
    assert [isinstance(sample, InputError) for _, sample in found] == [False, True, False, True, True, False, False]
    assert "is no array" in str(found[1][1])
    whole = _rows(tmp_path / "whole.csv", [path], 1)
    assert [bool(row["error"]) for row in whole] == [False, True, False, True, True, False, False]
    output = tmp_path / "part.csv"
    text = (tmp_path / "whole.csv").read_text().splitlines(keepends=True)
    output.write_text("".join(text[:4]))
    record = (tmp_path / "whole.csv.run.json").read_text()
    (tmp_path / "part.csv.run.json").write_text(
        record[: record.index('"finished"')] + '"finished": null, "bytes": null}'
    )
    done = CliRunner().invoke(cli, ["infer", *_RESUME, "--files-from", str(tmp_path / "list"), "--output", str(output)])
    assert done.exit_code == 1, done.output
    assert output.read_text() == "".join(text)


_RESUME = ["--model", "digits", "--device", "cpu", "--workers", "2", "-q", "--resume"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("small", [1 << 26, 0])
@pytest.mark.parametrize("kind", ["npy", "npz", "packed"])
def test_what_is_whole_is_what_numpy_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, small: int, order: str
) -> None:
    monkeypatch.setattr(arrays, "_SMALL", small)
    path = tmp_path / f"a.{kind.replace('packed', 'npz')}"
    written = np.random.default_rng(0).random((5, *SHAPE)).astype(">f2", order=order)  # type: ignore[call-overload]
    if kind == "npy":
        np.save(path, written)
        expected, whole = np.load(path), read_npy(path)
    else:
        (np.savez if kind == "npz" else np.savez_compressed)(path, x=written)
        expected, whole = np.load(path)["x"], read_npz(path)["x"]
    np.testing.assert_array_equal(whole, expected)
    assert whole.dtype == expected.dtype
    assert whole.flags.f_contiguous == expected.flags.f_contiguous
    found = [sample for _, sample in samples(str(path), SPEC)]
    np.testing.assert_array_equal(found, expected.astype(np.float32))
    assert all(sample.flags.c_contiguous for sample in found)


def test_a_file_of_many_samples_is_read_one_at_a_time(tmp_path: Path) -> None:
    """Two megabytes that unpack to two gigabytes of inputs: rows come, in the memory of one of them."""
    count = 2_000_000_000 // (4 * 32 * 32)
    path = tmp_path / "many.npz"
    path.write_bytes(_zeros(count))
    assert path.stat().st_size < 5 << 20
    script = """
import resource, sys
from vgg16gpu.pictures.inputs import InputSpec, each_sample
found = each_sample(sys.argv[1], InputSpec((1, 32, 32)))
next(found)
resource.setrlimit(resource.RLIMIT_AS, (int(open("/proc/self/statm").read().split()[0]) * 4096 + (64 << 20),) * 2)
assert all(sample.shape == (1, 32, 32) and not sample.any() for _, (_, sample) in zip(range(1000), found))
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def _zeros(count: int) -> bytes:
    """An archive of so many inputs of zeros, put together from a packed megabyte: packing all takes half a minute."""
    import io
    import struct
    import zipfile
    import zlib

    head = described((count, *SHAPE))
    nbytes = len(head) + count * 4 * 32 * 32
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    piece = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = piece.compress(bytes(1 << 20)) + piece.flush(zlib.Z_FULL_FLUSH)
    data += zeros * (-(-nbytes >> 20) + 1)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("x.npy", data)
    whole = bytearray(file.getvalue())
    for place, offset in ((0, 8), (whole.rindex(b"PK\1\2"), 10)):
        whole[place + offset : place + offset + 2] = struct.pack("<H", zipfile.ZIP_DEFLATED)
        whole[place + offset + 14 : place + offset + 18] = struct.pack("<I", nbytes)
    return bytes(whole)


def test_references_that_unpack_to_far_more_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_MOST_UNPACKED", 1 << 22)
    path = tmp_path / "references.npz"
    path.write_bytes(npz({"scores.npy": described((1 << 21, 1), data=bytes(1 << 23))}))
    with pytest.raises(InputError, match=r"is no file of results: .* unpacks to 8,388,608 bytes, at most 4,194,304"):
        read_scores(path)


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    """No signal ends the process: such a file is not mapped."""
    path = tmp_path / "a.npy"
    np.save(path, np.ones((50, *SHAPE), np.float32))
    found = each_sample(str(path), SPEC)
    next(found)
    os.truncate(path, 30_000)
    rest = list(found)
    assert isinstance(rest[-1][1], InputError)
    assert "it ends before its array does" in str(rest[-1][1])
