"""pictures/listing.py: which files, in which order, and what is left out and counted."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from tests.support.picture_files import every_kind
from vgg16gpu.errors import InputError
from vgg16gpu.pictures import listing as module
from vgg16gpu.pictures.listing import (
    HIDDEN,
    NO_FILE,
    NO_PICTURE,
    NO_TARGET,
    SEEN,
    UNREADABLE,
    Listing,
    list_files,
)

PICTURE = every_kind()["colour.png"]


def fill(folder: Path, *names: str, content: bytes = PICTURE) -> Path:
    """Files of these names; those that end with a slash are folders."""
    for name in names:
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(content)
    return folder


def inside(listing: Listing, folder: Path) -> list[str]:
    return [path.removeprefix(f"{folder}/") for path in listing.files]


def test_order_is_that_of_sorted_for_any_tree(tmp_path):
    import random

    rng = random.Random(3)
    characters = "a-./0_ ~é"
    names = set()
    for _ in range(300):
        parts = ["".join(rng.choices(characters.replace("/", ""), k=rng.randint(1, 3))).lstrip(".") for _ in range(3)]
        names.add("/".join(part or "x" for part in parts[: rng.randint(1, 3)]) + ".png")
    fill(tmp_path, *names)
    assert inside(list_files([tmp_path]), tmp_path) == sorted(names)


def test_hidden_files_and_folders_are_left_out(tmp_path):
    fill(tmp_path, "a.png", "._a.png", ".b.png", ".git/c.png", ".DS_Store", "d/._e.png")
    listing = list_files([tmp_path])
    assert inside(listing, tmp_path) == ["a.png"]
    assert listing.left_out == {HIDDEN: 5}
    assert listing.line() == "5 files left out: 5 hidden"


def test_content_decides_where_the_ending_does_not(tmp_path):
    for name, content in every_kind().items():
        fill(tmp_path, name.replace(".", "_"), content=content)
    kinds = len(every_kind())
    assert len(list_files([tmp_path]).files) == kinds
    fill(tmp_path, "jpeg.txt", "jpeg.npy", "jpeg.npz", "jpeg.xml", content=every_kind()["colour.jpg"])
    fill(tmp_path, "notes.txt", "a.npy", "b.npz", "c.xml", "noending", content=b"0.5 0.5")
    listing = list_files([tmp_path])
    assert len(listing.files) == kinds + 4
    assert listing.numbers == frozenset()
    assert listing.left_out == {NO_PICTURE: 5}
    assert listing.line() == "5 files left out: 5 no pictures (a.npy, b.npz, c.xml, ...)"


def test_raw_files_of_cameras_are_no_pictures(tmp_path):
    """They begin as TIFF does, and hold a preview."""
    fill(tmp_path, "a.nef", "b.CR2", "c.dng", "d", "e.tif", content=every_kind()["plain.tif"])
    assert inside(list_files([tmp_path]), tmp_path) == ["d", "e.tif"]
    with pytest.raises(InputError, match=r"a\.nef' has the ending '\.nef' and does not begin as a picture"):
        list_files([tmp_path / "a.nef"])


def test_each_folder_is_read_once(tmp_path):
    fill(tmp_path, "a/1.png", "b/2.png")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "again").symlink_to("a")
    (tmp_path / "b" / "self").symlink_to(".")
    listing = list_files([tmp_path])
    assert inside(listing, tmp_path) == ["a/1.png", "b/2.png"]
    assert listing.left_out == {SEEN: 3}
    assert len(list_files([tmp_path, tmp_path]).files) == 4  # as somebody asked


def test_what_is_no_file_is_left_out_of_folders(tmp_path):
    fill(tmp_path, "a.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.jpg").symlink_to("/dev/null")
    (tmp_path / "dangling.png").symlink_to("nowhere")
    (tmp_path / "ring.png").symlink_to("ring.png")
    listing = list_files([tmp_path])
    assert inside(listing, tmp_path) == ["a.png"]
    assert listing.left_out == {NO_FILE: 2, NO_TARGET: 2}
    expected = "4 files left out: 2 not files (device.jpg, pipe.png), 2 links to nothing (dangling.png, ring.png)"
    assert listing.line() == expected


def test_what_may_not_be_read_is_left_out_of_folders(tmp_path, monkeypatch):
    fill(tmp_path, "a.png", "locked/b.png", "unknown")
    scandir, read_head = os.scandir, module.read_head

    def scan(path):
        if os.fspath(path).rstrip("/").endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    def head(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", scan)
    monkeypatch.setattr(module, "read_head", head)
    listing = list_files([tmp_path])
    assert inside(listing, tmp_path) == ["a.png"]
    assert listing.left_out == {UNREADABLE: 2}
    assert listing.line() == "2 files left out: 2 not readable (unknown, locked)"
    with pytest.raises(InputError, match="locked' cannot be read: Permission denied"):
        list_files([tmp_path / "locked"])
    monkeypatch.setattr(module, "read_head", read_head)


def test_a_folder_without_pictures_is_refused(tmp_path):
    fill(tmp_path, "a.md", ".b", content=b"hello")
    with pytest.raises(InputError, match=r"has no images \(\.png, .*\); 2 files left out: 1 hidden, 1 no picture"):
        list_files([tmp_path])
    fill(tmp_path, "sub/c.png")
    assert list_files([tmp_path]).files
    with pytest.raises(InputError, match=r"has no images .* 1 subfolder \(sub\)"):
        list_files([tmp_path], recursive=False)


def test_numbers_are_known_by_their_ending(tmp_path):
    fill(tmp_path, "a.txt", "b.NPY", "c.npz", content=b"0.5")
    fill(tmp_path, "d.png", "e.txt", "f.bin")
    paths = [str(tmp_path / name) for name in ("a.txt", "b.NPY", "d.png", "c.npz", "e.txt", "f.bin")]
    listing = list_files([*paths, "-"])
    assert listing.files == (*paths, "-")
    assert listing.numbers == {paths[0], paths[1], paths[3], "-"}  # the last two hold pictures


def test_what_is_named_must_be_there(tmp_path):
    (tmp_path / "dangling.png").symlink_to("nowhere")
    (tmp_path / "ring.png").symlink_to("ring.png")
    for name in ("missing.png", "missing/below.png", "dangling.png", "ring.png", "zero\0.png", "n" * 300, ""):
        path = str(tmp_path / name) if name else ""
        with pytest.raises(InputError, match=r"^input '.*' does not exist$"):
            list_files([path])


def test_what_is_named_and_no_file_says_so_when_it_is_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.txt")
    paths = (str(tmp_path / "pipe.txt"), "/dev/zero")
    listing = list_files(paths)
    assert listing.files == paths
    assert listing.numbers == frozenset()

    def denied(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "stat", denied)
    assert list_files([tmp_path / "below"]).files == (str(tmp_path / "below"),)


def test_a_file_that_may_not_be_read_says_so_when_it_is_read(tmp_path, monkeypatch):
    fill(tmp_path, "a.bin", "b.npy")

    def denied(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(module, "read_head", denied)
    listing = list_files([tmp_path / "a.bin", tmp_path / "b.npy"])
    assert len(listing.files) == 2
    assert listing.numbers == {str(tmp_path / "b.npy")}


def listed(monkeypatch, content: bytes) -> Listing:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    return list_files([], "-")


def test_nothing_in_a_list_stops_the_others(tmp_path, monkeypatch):
    fill(tmp_path, "a.png", "folder/")
    fill(tmp_path, "a.txt", "b.docx", content=b"0.5")
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("ring").symlink_to("ring")
    names = ("missing.txt", "a.txt", "b.docx", "folder", "pipe", "ring", "n" * 300, "a.png/b.png", "a.png")
    listing = listed(monkeypatch, os.fsencode("\n".join(names)))
    assert listing.files == names
    assert listing.numbers == {"a.txt"}


def test_lists_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"the list '.*missing' cannot be read: No such file"):
        list_files([], str(tmp_path / "missing"))
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        list_files([], str(tmp_path))
    with pytest.raises(InputError, match="it can be one of them"):
        list_files(["-"], "-")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="names no files"):
        list_files([], "-")
