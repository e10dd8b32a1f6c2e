"""CUDA sources with their comments, strings, directives and keywords marked."""

from __future__ import annotations

import re
from typing import Final

from vgg16gpu_lab.report.html.markup import Html, element, joined

_KEYWORDS: Final = (
    "alignas|auto|bool|break|case|char|class|const|constexpr|continue|default|do|double|else|enum|extern|false|float|"
    "for|if|inline|int|long|namespace|operator|private|public|return|short|signed|sizeof|static|static_assert|struct|"
    "switch|template|true|typedef|typename|union|unsigned|using|void|volatile|while|__constant__|__device__|"
    "__forceinline__|__global__|__grid_constant__|__host__|__launch_bounds__|__restrict__|__shared__"
)

_TOKEN: Final = re.compile(
    r"(?P<c>//[^\n]*|/\*.*?\*/)"
    r"|(?P<s>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
    r"|(?P<d>^[ \t]*#[ \t]*\w+)"
    rf"|(?P<k>\b(?:{_KEYWORDS})\b)",
    re.MULTILINE | re.DOTALL,
)


def highlight(source: str) -> Html:
    """Return the text as it is, in spans of the classes c, s, d and k."""
    parts: list[str] = []
    end = 0
    for token in _TOKEN.finditer(source):
        parts += [source[end : token.start()], element("span", token.group(), class_=token.lastgroup)]
        end = token.end()
    return joined([*parts, source[end:]])
