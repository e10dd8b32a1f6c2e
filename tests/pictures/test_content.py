"""pictures/content.py: what a file holds, and its bytes, without ever waiting for a pipe."""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest

from tests.support.picture_files import every_kind
from vgg16gpu.errors import InputError
from vgg16gpu.pictures import content
from vgg16gpu.pictures.content import (
    HEAD_NBYTES,
    check_regular,
    picture_kind,
    read_file,
    read_head,
    read_into,
)

KINDS = {"jpg": "JPEG", "jpeg": "JPEG", "tif": "TIFF", "tiff": "TIFF"}


@pytest.mark.parametrize("name", sorted(every_kind()))
def test_kind_by_the_first_bytes(name):
    ending = name.rpartition(".")[2]
    assert picture_kind(every_kind()[name][:HEAD_NBYTES]) == KINDS.get(ending, ending.upper())


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xff\xd8",
        b"\x89PNG\n",
        b"GIF88a",
        b"RIFF....WAVE",
        b"BMW is no bitmap of any size",
        b"II*",
        b"MM*\0",
        b"%!PS-Adobe-3.0 EPSF-3.0",
        b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
        b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic",
        b"\x93NUMPY\1\0",
        b"PK\3\4",
    ],
)
def test_nothing_else_is_a_picture(head):
    assert picture_kind(head) is None


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1 << 20])
def test_all_bytes_are_read(tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "a").write_bytes(data)
    assert read_file(str(tmp_path / "a")) == data
    assert read_head(str(tmp_path / "a")) == data[:HEAD_NBYTES]
    assert check_regular(str(tmp_path / "a")) == size


def test_a_read_may_give_less_than_was_asked_for(tmp_path, monkeypatch):
    """As over a network."""
    data = os.urandom(1000)
    (tmp_path / "a").write_bytes(data)
    read = os.read
    monkeypatch.setattr(os, "read", lambda file, count: read(file, min(count, 300)))
    assert read_file(str(tmp_path / "a")) == data
    monkeypatch.setattr(os, "stat", lambda _: os.stat_result((0o100644, *[0] * 5, 2000, 0, 0, 0)))
    assert read_file(str(tmp_path / "a")) == data  # it has become shorter meanwhile


def test_a_file_that_has_no_room_in_memory_is_told_of(tmp_path, monkeypatch):
    def read(*_):
        raise MemoryError

    (tmp_path / "a.jpg").write_bytes(b"data")
    monkeypatch.setattr(os, "read", read)
    with pytest.raises(InputError, match=r"a\.jpg' cannot be read: it needs more memory than there is$"):
        read_file(str(tmp_path / "a.jpg"))


def test_a_file_that_grows_without_end_is_cut(tmp_path):
    (tmp_path / "a").write_bytes(bytes(11))
    with pytest.raises(InputError, match=r"a' has 11 bytes, at most 10 are read"):
        read_file(str(tmp_path / "a"), most=10)
    assert len(read_file(str(tmp_path / "a"), most=11)) == 11
    os.truncate(tmp_path / "a", content.MAX_NBYTES + 1)  # a hole, which takes no room
    with pytest.raises(InputError, match=r"at most 1,073,741,824 are read"):
        read_file(str(tmp_path / "a"))


def test_a_file_is_read_to_where_it_shall_lie(tmp_path, monkeypatch):
    path, data = tmp_path / "a", bytes(range(200))
    path.write_bytes(data)
    out = np.zeros(300, np.uint8)
    assert read_into(str(path), out) == 200
    assert out.tobytes() == data + bytes(100)  # and nothing behind it is touched
    assert read_into(str(path), out[:200]) == 200
    assert read_into(str(path), out[:199]) is None
    readv = os.readv
    monkeypatch.setattr(os, "readv", lambda file, places: readv(file, [places[0][:7]]))  # the system may give less
    out[:] = 0
    assert read_into(str(path), out) == 200
    assert out.tobytes() == data + bytes(100)
    with pytest.raises(InputError, match="does not exist"):
        read_into(str(tmp_path / "b"), out)
    with pytest.raises(InputError, match="is a folder"):
        read_into(str(tmp_path), out)


def test_only_regular_files_are_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "ring").symlink_to("ring")
    (tmp_path / "nothing").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    said = {
        "pipe": "is a pipe",
        "folder": "is a folder",
        "zero": "is a device",
        "socket": "is a socket",
        "ring": "does not exist",
        "nothing": "does not exist",
        "missing": "does not exist",
        "zero\0byte": "does not exist",
        "n" * 300: "does not exist",
        "pipe/below": "does not exist",
    }
    for name, what in said.items():
        for read in (read_file, check_regular):
            with pytest.raises(InputError) as caught:
                read(name)
            assert str(caught.value).startswith(f"'{name}' {what}")
    assert read_head("pipe") == read_head("zero") == b""


def test_a_pipe_in_place_of_the_file_that_was_looked_at_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    found = (tmp_path / "file").stat()
    monkeypatch.setattr(os, "stat", lambda _: found)
    assert read_file(str(tmp_path / "pipe")) == b""
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        with pytest.raises(InputError, match="cannot be read: Resource temporarily unavailable"):
            read_file(str(tmp_path / "pipe"))
    finally:
        os.close(writer)


def test_files_that_nobody_may_read(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"1")

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(InputError, match=r"a\.png' cannot be read: Permission denied"):
        read_file(str(tmp_path / "a.png"))
    monkeypatch.setattr(os, "stat", denied)
    with pytest.raises(InputError, match=r"a\.png' cannot be read: Permission denied"):
        read_file(str(tmp_path / "a.png"))
