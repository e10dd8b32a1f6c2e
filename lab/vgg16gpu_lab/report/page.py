"""The page: its sections, a table of contents, and everything inside that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vgg16gpu_lab.report.folder import Results
from vgg16gpu_lab.report.html.markup import Html, element, joined, paragraph
from vgg16gpu_lab.report.html.style import CSS
from vgg16gpu_lab.report.sections.benchmark import benchmarks, rooflines
from vgg16gpu_lab.report.sections.claims import claims
from vgg16gpu_lab.report.sections.ladder import ladder
from vgg16gpu_lab.report.sections.pipeline import pipelines
from vgg16gpu_lab.report.sections.promises import conformance, promises
from vgg16gpu_lab.report.sections.seeds import seeds
from vgg16gpu_lab.report.sections.sources import sources
from vgg16gpu_lab.report.sections.which import which

TITLE: Final = "vgg16gpu: kernels, measured"
LEAD: Final = (
    "VGG16 through hand-written CUDA kernels, from the plainest to the fastest: what each idea brings, what others "
    "claimed and what holds, and every kernel to read. All numbers come from recorded runs; times are medians unless "
    "said otherwise. This page needs no network and no GPU."
)


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    name: str  # of its anchor
    title: str
    text: str
    make: Callable[[Results], Html]


SECTIONS: Final = (
    Section("ladder", "The ladder", "A whole network, rung by rung; each is checked before it is timed.", ladder),
    Section("benchmarks", "Benchmarks", "The engine beside the libraries that others use.", benchmarks),
    Section(
        "pipeline",
        "From a folder to rows",
        "A folder of pictures to a file of answers: each stage alone, whole runs, and what others do.",
        pipelines,
    ),
    Section(
        "rooflines",
        "Rooflines",
        "Each step of the network as a dot: how much it computes a byte that it has to move, and how fast. The lines "
        "are what the device can do at most; a dot above them reads out of caches. The numbers are those of the table.",
        rooflines,
    ),
    Section("lab", "The lab", "Published experiments, run again: ours beside theirs.", seeds),
    Section("claims", "Claims", "Every sentence of the reports that can be tested, and what became of it.", claims),
    Section(
        "conformance",
        "Conformance",
        "ONNX's own suite of tests: passed, refused because the operator is not supported, failed.",
        conformance,
    ),
    Section("promises", "Promises", "How they were checked.", promises),
    Section("kernels", "Kernels", "Every source, in the order to read them.", sources),
)


def page(results: Results) -> str:
    """Return the whole document; the same records give the same bytes. Raises InputError for a broken record."""
    links = [element("a", section.title, href=f"#{section.name}") for section in SECTIONS]
    body = element(
        "body",
        element("h1", TITLE),
        paragraph(LEAD),
        which(results),
        element("nav", *links, aria_label="Contents"),
        element("main", *(_section(section, results) for section in SECTIONS)),
    )
    return f"<!DOCTYPE html>\n{element('html', _head(), body, lang='en')}\n"


def _head() -> Html:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", TITLE),
        element("style", Html(CSS)),
    )


def _section(section: Section, results: Results) -> Html:
    parts = joined([element("h2", section.title), paragraph(section.text), section.make(results)])
    return element("section", parts, id=section.name)
