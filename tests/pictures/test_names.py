"""pictures/names.py: lists of names as many programs write them; what is no list is refused, and nothing is walked."""

from __future__ import annotations

import io
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.picture_files import encoded, pixels
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.listing import list_files, read_names

NAMES = ("a.png", "photos/größe 1.jpg", "日本.png", "it's.png")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for name in NAMES:
        (tmp_path / name).write_bytes(encoded(Image.fromarray(pixels(8, 8)), "PNG"))


def names(data: bytes, *, null: bool = False) -> tuple[str, ...]:
    Path("list").write_bytes(data)
    return list_files([], "list", null=null).files


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_encodings_and_line_ends(encoding: str, end: str, last: bool) -> None:
    mark = "\ufeff" if encoding in ("utf-16-le", "utf-16-be") else ""
    text = mark + end.join(NAMES) + end * last
    assert names(text.encode(encoding)) == NAMES


@pytest.mark.parametrize("form", ["{} ", "{}\t ", "  {}", '"{}"', "'{}'", ' "{}" ', "{}\r"])
def test_blanks_and_quotes_around_a_name(form: str) -> None:
    text = "\n".join(map(form.format, NAMES)) + "\n\n \n"
    assert names(text.encode()) == NAMES
    assert names(text.encode("utf-16")) == NAMES


def test_zero_bytes_separate_on_request() -> None:
    data = b"a.png\0missing \n.png\0 photos\0"
    assert names(data, null=True) == ("a.png", "missing \n.png", " photos")
    with pytest.raises(InputError, match=r"^the list 'list' has zero bytes.*--null.*'missing .*\.png'$"):
        names(data)


def test_zero_bytes_separate_where_each_name_is_there() -> None:
    """`find -print0 | vgg16gpu infer --files-from -` goes on working."""
    Path("line\nbreak.png").write_bytes(Path("a.png").read_bytes())
    Path("link.png").symlink_to("nowhere")
    found = (*NAMES, "line\nbreak.png", "link.png")
    assert names("\0".join(found).encode() + b"\0") == found


def workbook() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("xl/sharedStrings.xml", b"<sst>/\0/\0</sst>")
    return file.getvalue()


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros((2, 3, 8, 8), np.float32))
    return file.getvalue()


BINARIES = {
    "xlsx": workbook(),
    "png": encoded(Image.fromarray(pixels(8, 8)), "PNG"),
    "npy": array(),
    "folders": b"/\0x\xff/\0",
    "no utf-16": "a.png\n/\n".encode("utf-16-le"),
    "utf-32": "a.png".encode("utf-32"),
    "half a unit": "a.png".encode("utf-16") + b"x",
    "compressed": b"\x1f\x8b\x08\xff\x01/\n\x02\xfe",
    "zeros": bytes(5) + b"/",
}


@pytest.mark.parametrize("kind", BINARIES)
def test_what_is_no_text_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "scandir", None)  # nothing is walked
    with pytest.raises(InputError, match=r"^the list 'list' (is|has) ") as found:
        names(BINARIES[kind])
    assert "\n" not in str(found.value)


def test_a_list_without_an_end_is_refused() -> None:
    with pytest.raises(InputError, match=r"^the list '/dev/zero' has more than 1,048,576 bytes"):
        read_names("/dev/zero")
    assert read_names("/dev/null") == []


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("a.png\r\n".encode("utf-16"))))
    assert read_names("-") == ["a.png"]
    monkeypatch.setattr(sys, "stdin", None)
    assert read_names("-") == []
