"""Class names."""

from __future__ import annotations

import pytest

from vgg16gpu.errors import InputError
from vgg16gpu.io import labels


def test_imagenet_names():
    names = labels.load(None, 1000)
    assert len(set(names)) == 1000
    # Known places in the order that every ImageNet model shares.
    known = {0: "tench", 207: "golden retriever", 281: "tabby", 463: "bucket", 817: "sports car", 999: "toilet tissue"}
    assert {index: names[index] for index in known} == known


TEXTS = ["cat\ndog\n", "cat\r\ndog\r\n\r\n", "\ufeffcat\n dog ", "cat\ndog\n\n\n", "cat\rdog"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_a_file(text, encoding, tmp_path):
    path = tmp_path / "names.txt"
    mark = "\ufeff" * (encoding != "utf-8" and not text.startswith("\ufeff"))
    path.write_bytes((mark + text).encode(encoding))
    assert labels.load(path, 2) == ("cat", "dog")


def test_a_line_ends_at_its_end_alone(tmp_path):
    """Python's splitlines ends lines at seven other characters, too."""
    path = tmp_path / "names.txt"
    path.write_text("a\u2028b\nc\x0cd\x85\n", encoding="utf-8")
    assert labels.load(path, 2) == ("a\u2028b", "c\x0cd")


def test_files_that_are_no_labels(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read: No such file or directory; give a text file"):
        labels.load(tmp_path / "none.txt", 2)
    with pytest.raises(InputError, match=r"cannot be read: Is a directory; give a text file"):
        labels.load(tmp_path, 2)
    (tmp_path / "latin").write_bytes(b"\xe9t\xe9")
    with pytest.raises(InputError, match=r"is no text of utf-8: .*; give a text file with one class name a line"):
        labels.load(tmp_path / "latin", 2)
    (tmp_path / "binary").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    with pytest.raises(InputError, match="is no text of utf-8"):
        labels.load(tmp_path / "binary", 2)
    with pytest.raises(InputError, match=r"^'/dev/zero' has more than 1,048,576 bytes"):
        labels.load("/dev/zero", 2)


@pytest.mark.parametrize(
    "text",
    [
        "{0: 'cat',\n 1: 'dog'}",  # the gist that most take for ImageNet has as many lines as classes
        "{0: 'cat', 1: \"dog\",}",
        "{1: 'dog', 0: 'cat'}",
        '{"0": "cat",\n "1": "dog"}',
        '{"0": ["n02121808", "cat"], "1": ["n02084071", "dog"]}',  # imagenet_class_index.json
        '{"dog": 1, "cat": 0}',  # class_to_idx of torchvision, class_indices of Keras
        "{'dog': 1, 'cat': 0}",
        '["cat",\n "dog"]',
        "['cat', 'dog']",
        "[\n'cat',\n'dog',\n]\n",
    ],
)
def test_q10_a_list_or_dict_of_python_or_json_is_read(text, tmp_path):
    path = tmp_path / "names.txt"
    path.write_text(text)
    assert labels.load(path, 2) == ("cat", "dog")


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{0: 'cat',\n1: 'dog'", "begins as a dict of Python or JSON and is none: SyntaxError; give one name a line"),
        ("{0: cat,\n1: dog}", "begins as a dict of Python or JSON and is none: ValueError"),
        ("{" * 5000, "begins as a dict of Python or JSON and is none"),
        ("{0: 'cat',\n2: 'dog'}", "is a dict that does not name classes 0, 1, 2"),
        ("{'cat': 0,\n'dog': 0}", "is a dict that does not name classes"),
        ("{True: 'cat',\nFalse: 'dog'}", "is a dict that does not name classes"),
        ("{0: ['cat'],\n1: [[]]}", "is a dict that does not name classes"),
        ("{'cat',\n'dog'}", "is a set that does not name classes"),
        ("[['cat'],\n['dog']]", "is a list that does not name classes"),
        ("{0: 'cat', 1: 'dog', 2: 'cow'}", "has 3 class names, the model has 2 scores"),
        ("{-1: 'cat',\n0: 'dog'}", "is a dict that does not name classes"),
    ],
)
def test_q10_what_is_none_is_refused(text, message, tmp_path):
    path = tmp_path / "names.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        labels.load(path, 2)


def test_names_may_begin_with_a_bracket(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("[UNK]\ndog\n")
    assert labels.load(path, 2) == ("[UNK]", "dog")
