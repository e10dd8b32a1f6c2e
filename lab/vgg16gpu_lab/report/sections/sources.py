"""All kernel sources in the order to read them; before the lab's, pictures that explain them and what they take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vgg16gpu.devices.kernel_source import SUFFIXES, files, read_source, source_name
from vgg16gpu_lab.ladder.rungs import RUNGS
from vgg16gpu_lab.report.folder import Results
from vgg16gpu_lab.report.html.highlight import highlight
from vgg16gpu_lab.report.html.markup import Html, element, fold, joined
from vgg16gpu_lab.report.sections.learning import learning
from vgg16gpu_lab.report.sections.links import anchor
from vgg16gpu_lab.variants import variants

# As docs/kernels.md has them.
READING: Final = (
    *("hopper.cuh", "wgmma.cuh", "conv_wgmma.cu", "element.cuh", "wgmma_tile.cuh", "conv_wgmma_small.cu"),
    *("split_exchange.cuh", "conv_first.cu", "first_layer.cuh", "conv_first_two.cu", "gemv.cu", "gemm_wgmma.cu"),
    *("scales.cu", "pack_blocks.cu", "convert.cu", "mma.cuh", "implicit_gemm.cuh", "conv_mma.cu", "gemm_mma.cu"),
    *("mma_epilogue.cuh", "conv_igemm.cu", "gemm_splitk.cu", "walk.cuh", "elementwise.cu", "rearrange.cu", "matmul.cu"),
    *("conv_general.cu", "window.cuh", "pool.cu", "lrn.cu", "softmax.cu", "masked_gradient.cu", "pool_gradient.cu"),
    *("feature_loss.cu", "row_sum.cu", "block_reduce.cuh", "gram.cu"),
)

_INCLUDE: Final = re.compile(r'^#include "([\w./]+)"', re.MULTILINE)
_HEAD: Final = re.compile(r"\A(?://[^\n]*\n)+")
_LESSON: Final = re.compile(r"^// (?:Teaches|Why):(.*(?:\n//   .*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Group:
    """Files that belong together, by their names in the kernel folder."""

    title: str
    text: str
    names: tuple[str, ...]


def groups() -> tuple[Group, ...]:
    """Return every file, once."""
    lab = _in_order((variant.source for variant in variants()), "lab")
    ladder = _in_order((rung.source for rung in RUNGS), "ladder")
    main = _in_order(("common.cuh", *READING), "")
    shim = tuple(name for name in main if name.endswith(".h"))
    own = tuple(name for name in main if name not in shim)
    return (
        Group("The plain path", "Three kernels to read first.", _in_order((), "plain")),
        Group("The lab", "One technique a file, from the plainest on.", lab),
        Group("The ladder", "What a whole network ran on, before the engine's own kernels.", ladder),
        Group("The engine", "What is run when a model is, Hopper's first.", own),
        Group("NVRTC's", "What its compiler lacks of C's and the driver's headers.", _in_order((), "nvrtc")),
        Group("The CPU's", "How the same kernels run without a GPU.", (*shim, *_in_order((), "cpu"))),
    )


def sources(results: Results) -> Html:
    """Return a fold for every file: its head's lesson, then the code; pictures and resources before the lab's."""
    plain, lab, *others = groups()
    return joined([_group(plain), _group(lab, learning(results)), *map(_group, others)])


def _group(group: Group, before: Html | None = None) -> Html:
    return joined([element("h3", group.title), element("p", group.text), before, *map(_file, group.names)])


def _file(name: str) -> Html:
    text = read_source(name)
    found = _HEAD.match(text)
    head = found.group() if found else ""
    told = re.sub(r"^// ?", "", head, flags=re.MULTILINE)
    lesson = element("span", f": {_lesson(head)}", class_="soft") if _lesson(head) else None
    summary = joined([element("code", name), f" {len(text.splitlines())} lines", lesson])
    code = element("pre", highlight(text[len(head) :].strip("\n")), tabindex="0")
    told_first = element("pre", told.rstrip(), class_="head") if told else None
    return fold(summary, told_first, code, anchor=anchor(name))


def _lesson(head: str) -> str:
    """Return what the head says that a file teaches or is for; "" where it does not."""
    found = _LESSON.search(head)
    return " ".join(found.group(1).replace("//", " ").split()) if found else ""


def _in_order(wanted: Iterable[str], room: str) -> tuple[str, ...]:
    """Return the files whose names begin with a folder's, "" for those without: those wanted, then the others.

    A header that is not asked for comes before the first file that includes it.
    """
    there = {name for name in map(source_name, files(*SUFFIXES)) if name.rpartition("/")[0] == room}
    chosen = [name for name in wanted if name in there]
    headers = [name for name in sorted(there) if not name.endswith(".cu")]
    later = {name for name in headers if name in chosen}
    return tuple(dict.fromkeys(_with_headers([*chosen, *sorted(there)], set(headers) - later)))


def _with_headers(names: Iterable[str], headers: set[str]) -> Iterator[str]:
    for name in names:
        included = {Path(found).name for found in _INCLUDE.findall(read_source(name))}
        yield from (header for header in sorted(headers) if Path(header).name in included)
        yield name
