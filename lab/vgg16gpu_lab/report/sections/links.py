"""Links from the names of kernels to their sources, further down on the page."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from vgg16gpu.devices.kernel_source import SUFFIXES, files, own_sources, read_source, source_name
from vgg16gpu_lab.report.html.markup import Html, element, joined
from vgg16gpu_lab.variants import variants

# Between the word and the name are bounds and clusters, whose own names begin with underscores.
_KERNEL: Final = re.compile(r"\b__global__\b[^;{]*?\b(?!__)(\w+)\s*\(")


def anchor(source: str) -> str:
    """Return the id of a source's place on the page."""
    return f"source-{source.replace('/', '-')}"


def to_source(source: str, shown: str | None = None) -> object:
    """Return a link to a source by its name; the text alone where the package has no such file (a user's kernel)."""
    text = source if shown is None else shown
    return _link(source, text) if source in _names() else text


def to_kernel(kernel: str) -> Html:
    """Return a link by a kernel's name, with or without its parameters: `conv_wgmma<1,0,128>`."""
    source = _kernels().get(kernel.partition("<")[0])
    first, *more = kernel.split(",")
    shown = joined([first, *(joined([",", element("wbr"), part]) for part in more)])  # a line may end at a comma
    return _link(source, shown) if source else shown


def to_variant(variant: str, shown: str) -> object:
    """Return a link by the name of one of the lab's variants."""
    source = _variants().get(variant)
    return to_source(source, shown) if source else shown


def _link(source: str, text: str) -> Html:
    return element("a", text, href=f"#{anchor(source)}")


@cache
def _names() -> frozenset[str]:
    return frozenset(map(source_name, files(*SUFFIXES)))


@cache
def _kernels() -> dict[str, str]:
    """Return the source of each kernel; of two of a name the engine's."""
    own = [*own_sources(), *files(".cu")]
    sources = (source_name(path) for path in reversed(own))
    return {name: source for source in sources for name in _KERNEL.findall(read_source(source))}


@cache
def _variants() -> dict[str, str]:
    return {variant.name: variant.source for variant in variants()}
