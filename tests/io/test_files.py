"""io/files.py: a file, a folder is whole or not there, links stay links, and nothing but regular files is replaced."""

import os

import pytest

from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.files import atomic_writer, check_outputs, check_writable, folder_writer, target_of


def write(path, content=b"new"):
    with atomic_writer(path) as stream:
        stream.write(content)


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link, far = tmp_path / "folder" / "target", tmp_path / "link", tmp_path / "far"
    link.symlink_to(target)
    far.symlink_to(link)
    for content in (b"made", b"replaced"):
        write(far, content)
        assert far.is_symlink()
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_pipes_and_circles_are_refused_and_stay(tmp_path):
    # A pipe stands for every device too: were this wrong, a test with a device would replace that.
    pipe, circle, link = tmp_path / "pipe", tmp_path / "circle", tmp_path / "link"
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    link.symlink_to(pipe)
    for path in (pipe, circle, link):
        with pytest.raises(ModelError, match=f"{path.name}: is no regular file"):
            write(path)
        with pytest.raises(InputError, match=f"--output '.*{path.name}' is no regular file"):
            check_writable(path)
    assert pipe.is_fifo()
    assert circle.is_symlink()
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 3


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match=r"--sample '.*out\.npy' cannot be written: folder '.*' does not exist"):
        check_writable(tmp_path / "missing" / "out.npy", "--sample")
    with pytest.raises(InputError, match="folder"):
        check_writable(tmp_path)
    with pytest.raises(ModelError, match="is a folder"):
        target_of(tmp_path)
    with pytest.raises(ModelError, match="cannot be written"):
        write(tmp_path / "missing" / "a")
    (tmp_path / "dangling").symlink_to(tmp_path / "missing" / "a")
    with pytest.raises(InputError, match="does not exist"):
        check_writable(tmp_path / "dangling")


def test_two_outputs_are_two_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [tmp_path / name for name in ("a", "b", "link")]
    paths[2].symlink_to("a")
    check_outputs({"--output": paths[0], "--plot": paths[1], "--other": None})
    for other in (paths[0], paths[2], tmp_path / ".." / tmp_path.name / "a", type(tmp_path)("a")):
        with pytest.raises(InputError, match="--plot and --output name the same file"):
            check_outputs({"--output": paths[0], "--plot": other})


def fill(path, *, force=False, error=None):
    with folder_writer(path, force=force) as place:
        (place / "a").write_text("new")
        if error:
            raise error
        (place / "b").write_text("new")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ModelError("no")])
@pytest.mark.parametrize("there", [False, True])
def test_a_folder_is_whole_or_not_there(there, error, tmp_path):
    path = tmp_path / "out"
    if there:
        path.mkdir()
        (path / "a").write_text("old")
    with pytest.raises(type(error)):
        fill(path, force=True, error=error)
    assert [item.name for item in tmp_path.rglob("*")] == (["out", "a"] if there else [])
    assert not there or (path / "a").read_text() == "old"


def test_a_folder_is_made_and_with_force_filled(tmp_path):
    path, link = tmp_path / "out", tmp_path / "link"
    link.symlink_to(path)
    fill(path)
    (path / "c").write_text("old")
    (path / "a").write_text("old")
    with pytest.raises(InputError, match="is there and not empty"):
        fill(path)
    assert (path / "a").read_text() == "old"
    fill(link, force=True)
    assert link.is_symlink()
    assert {item.name: item.read_text() for item in path.iterdir()} == {"a": "new", "b": "new", "c": "old"}
