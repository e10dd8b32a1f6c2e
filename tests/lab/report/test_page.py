"""The page as a text: valid, whole, offline, escaped, the same every time, with a line for what there is not."""

import json
import re

import pytest

from tests.lab.report.parsed import Page
from tests.lab.report.records import ESCAPED, HOSTILE, every, lab, ladder, without_matplotlib
from vgg16gpu.errors import InputError
from vgg16gpu_lab.experiments.record import write
from vgg16gpu_lab.report.folder import find_results
from vgg16gpu_lab.report.html import pictures
from vgg16gpu_lab.report.html.markup import number
from vgg16gpu_lab.report.page import SECTIONS, page
from vgg16gpu_lab.report.sections.claims import claims

PIXEL = bytes.fromhex("89504e470d0a1a0a")


@pytest.fixture(scope="module")
def parsed(full):
    return Page(full)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    with without_matplotlib():
        return Page(page(find_results([tmp_path_factory.mktemp("empty")])))


def test_tags_are_balanced_links_lead_somewhere_and_names_are_escaped(parsed, empty, full):
    assert parsed.faults == []
    assert empty.faults == []
    assert Page("<p><b></p></b>").faults  # the parser finds faults
    sections = [attributes["id"] for tag, attributes in parsed.elements if tag == "section"]
    links = [attributes["href"] for tag, attributes in parsed.elements if tag == "a"]
    assert sections == [section.name for section in SECTIONS]
    assert links[: len(sections)] == [f"#{name}" for name in sections]
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert {*links} <= {f"#{name}" for name in ids}
    assert HOSTILE not in full
    assert full.count(ESCAPED) > 5
    assert HOSTILE in parsed.sections["ladder"]
    assert HOSTILE in parsed.sections["conformance"]
    images = [attributes for tag, attributes in parsed.elements if tag == "img"]
    assert len(images) >= 4
    assert all(image["src"].startswith("data:image/svg+xml;base64,") and image["alt"] for image in images)


def test_nothing_is_loaded_from_elsewhere(parsed, full):
    for tag, attributes in parsed.elements:
        assert tag not in ("link", "script", "iframe", "object", "embed", "base", "form")
        assert not any(name.startswith("on") for name in attributes)
        if tag != "a":
            sources = [attributes.get(name) for name in ("src", "href", "srcset", "data", "poster")]
            assert all(source.startswith("data:image/") for source in sources if source)
    assert "url(" not in full
    assert "@import" not in full


RECORDS = every()
LADDER, BENCH, PIPELINE = (RECORDS[name] for name in ("ladder-h200", "bench-h200-244", "pipeline-h200"))
CONFORMANCE, TESTS, FUZZ, PROFILE = (
    RECORDS[name] for name in ("conformance-cpu", "tests-h200", "fuzz-cpu", "lab/profile-direct-chw")
)
SHOWN = {
    "ladder": (
        *(rung["name"] for rung in LADDER["rungs"]),
        f"{number(LADDER['rungs'][1]['gain']['measured'])}x",
        number(1e3 * LADDER["rungs"][0]["times"]["median_s"]),
        "published at 244 (ms)",
        "needs a Hopper",
    ),
    "benchmarks": ("batch 1 (ms)", BENCH["environment"]["commit"]["hash"][:10], "torch", "int8"),
    "pipeline": (
        f"{PIPELINE['pipeline']['pictures']['count']:,} pictures of ",
        f" alone let at most {number(PIPELINE['verdicts'][0]['ceiling']['pictures_per_s'])} pictures a second through",
        f"a whole run has {PIPELINE['verdicts'][0]['share']:.0%} of that",
        *(peer["name"] for peer in PIPELINE["peers"]),
        "torch, nvJPEG",
    ),
    "rooflines": ("fp16, batch 1", "int8, batch 1", "TFLOP/s (log scale)", "TOP/s (log scale)", "conv 3x3 64->64"),
    "lab": ("S1: ", "Table methods", "published (ms)", "ours (%)", "lab run S2", "lab run S4"),
    "claims": (
        *("S1.1", "S5.1", "By their own tables: ", "By our records: ", "ladder of ", "section", "kind", "share"),
        *("which", "3.3.2", "practice", "our question"),
    ),
    "conformance": ("passed (tests)", "{passed} of {listed}".format(**CONFORMANCE["must"]), "Conv"),
    "promises": (str(TESTS["tests"]["passed"]), number(FUZZ["cases"]), "hang", "10 of 10", "random weights"),
    "kernels": (
        *("lab/direct_hwc.cu", "ladder/pixels.cu", "conv_wgmma.cu", "cpu/mma.h", "__global__", "Cost:", "registers"),
        *("Profile of direct-chw: 1024x1024, 3x3, 3 channels to 64", PROFILE["kernels"][0]["kernel"], "L1 hits"),
    ),
}
COMMANDS = {  # which make the records that a section needs
    "ladder": "vgg16gpu ladder --output",
    "benchmarks": "vgg16gpu bench --output",
    "pipeline": "python -m testbench.pipeline MODEL --pictures DIR --output",
    "rooflines": "vgg16gpu bench --output",
    "lab": "vgg16gpu lab run all --output",
    "claims": "vgg16gpu lab run all --output",
    "conformance": "python -m tests.conformance.suite --output",
    "promises": (
        "python -m pytest --record|python -m tests.fuzz.models|python -m tests.stress.promises|"
        "vgg16gpu testbench --output"
    ),
    "kernels": "lab list --kernels --json|lab profile NAME --output",
}


def test_sections_show_their_records_or_what_makes_them(parsed, empty):
    for section, parts in SHOWN.items():
        for part in parts:
            assert part in parsed.sections[section], (section, part)
    for section, commands in COMMANDS.items():
        for command in commands.split("|"):
            assert command in empty.sections[section], command
            assert section == "kernels" or command not in parsed.sections[section], command
    assert "lab list --kernels --json" not in parsed.sections["kernels"]
    assert "the published tables alone" in empty.sections["claims"]
    assert "__global__" in empty.sections["kernels"]


# Pictures


def test_pictures_are_drawn_or_those_beside_the_record_taken(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    assert "data:image/svg+xml;base64," in pictures.picture("alt", (), lambda: figure)
    (tmp_path / "chart-a.png").write_bytes(PIXEL)
    beside = pictures.files(tmp_path, "chart-a")
    assert 'src="data:image/png;base64,iVBORw0KGgo="' in pictures.picture("alt", beside, lambda: figure)
    with without_matplotlib():
        assert "matplotlib is not installed" in pictures.picture("alt", (), lambda: figure)


# Which records


@pytest.mark.usefixtures("no_pictures")
def test_two_records_of_one_ladder_are_not_judged(tmp_path):
    write(tmp_path, "S1", lab())
    for name in ("ladder-a", "ladder-b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(ladder()))
    assert "Not judged: two records of ladder" in claims(find_results([tmp_path]))


@pytest.mark.usefixtures("no_pictures")
def test_broken_records_are_named(tmp_path):
    broken = [("bench-a", "{"), ("ladder-a", "[]"), ("tests-a", "{}"), ("lab/S1", '{"schema": 99, "tests": null}')]
    (tmp_path / "lab").mkdir()
    for name, text in broken:
        path = tmp_path / f"{name}.json"
        path.write_text(text)
        with pytest.raises(InputError, match=re.escape(str(path))):
            page(find_results([tmp_path]))
        path.unlink()
    for name in ("conformance-cpu", "tests-h200", "fuzz-cpu", "stress-h200", "testbench-cpu"):
        content = {key: value for key, value in RECORDS[name].items() if key != "environment"}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match="another version"):
            page(find_results([path]))
