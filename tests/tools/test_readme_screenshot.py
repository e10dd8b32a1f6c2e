"""tools/readme_screenshot.py: the drawing says what the command prints."""

import re
from xml.etree import ElementTree

import pytest
import readme_screenshot as tool

PRINTED = (
    "\x1b[1mnet.onnx (a & b < c)\x1b[0m\n"
    "│ \x1b[31mred\x1b[0m  │ 98.38% │\n"
    "Device: cpu: as asked; precision fp32\n"
    "Times: load 83.8 ms, build 1,234 s, steady run -, batch 1\n"
)


def test_the_stored_drawing_is_what_the_command_prints_today(capsys):
    assert tool.main(["--check"]) == 0, capsys.readouterr().out


def test_a_drawing_gives_its_text_back_and_needs_nothing_else():
    svg = tool.drawing(PRINTED)
    assert tool.text_of(svg) == re.sub(r"\x1b\[\d+m", "", PRINTED).rstrip()
    tree = ElementTree.fromstring(svg)  # well-formed
    assert {element.tag.partition("}")[2] for element in tree.iter()} <= {
        "svg", "title", "style", "defs", "clipPath", "rect", "circle", "g", "text",
    }  # fmt: skip
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.findall(r"url\((?!#)|@import|@font-face", svg)
    squares = [element for element in tree[-1] if element.tag.endswith("rect")]
    assert len(squares) == tool.PIXELS**2


def test_times_and_devices_do_not_last_all_else_does():
    lasting = tool.lasting(PRINTED)
    assert lasting == (
        "net.onnx (a & b < c) │ red │ 98.38% │ Device: ...; precision fp32 "
        "Times: load ..., build ..., steady run ..., batch 1"
    )
    other = PRINTED.replace("cpu: as asked", "cuda: a card").replace("83.8 ms", "2 us").replace("run -", "run\n4.1 ms")
    assert tool.lasting(other) == lasting
    for part, change in (("98.38%", "98.39%"), ("batch 1", "batch 2"), ("fp32", "fp16")):
        assert tool.lasting(PRINTED.replace(part, change)) != lasting


@pytest.fixture
def stored(monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "DRAWING", tmp_path / "images" / "infer.svg")
    monkeypatch.setattr(tool, "printed", lambda: PRINTED)
    monkeypatch.setattr(tool, "_with_picture", lambda terminal: terminal)
    return tmp_path / "images" / "infer.svg"


def test_an_old_drawing_is_noticed_and_drawn_again(stored, monkeypatch):
    assert tool.main(["--check"]) == 1
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
    monkeypatch.setattr(tool, "printed", lambda: PRINTED.replace("red", "blue"))
    before = stored.read_bytes()
    assert tool.main(["--check"]) == 1
    assert stored.read_bytes() == before


def test_a_command_that_fails_draws_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "DRAWING", tmp_path / "infer.svg")
    monkeypatch.setattr(tool, "COMMAND", ("infer", "no-such-picture.png"))
    with pytest.raises(SystemExit, match=r"exit code 2: vgg16gpu: input 'no-such-picture\.png' does not exist"):
        tool.main([])
    assert not (tmp_path / "infer.svg").exists()
