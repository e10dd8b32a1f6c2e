"""The small parts: markup, numbers, colours, highlighting, reading order, rooflines."""

import re
from itertools import combinations

import pytest

from tests.lab.report.parsed import Page
from vgg16gpu_lab.report.html.highlight import highlight
from vgg16gpu_lab.report.html.markup import element, error, joined, number
from vgg16gpu_lab.report.html.style import CSS
from vgg16gpu_lab.report.sections.roofline import Dot, Roof, draw


def test_text_is_escaped_and_markup_is_not():
    assert element("p", "a < b", element("b", "&"), None) == "<p>a &lt; b<b>&amp;</b></p>"
    assert element("p", class_='"', open=True, hidden=False) == '<p class="&quot;" open></p>'
    assert element("text", text_anchor=3) == '<text text-anchor="3"></text>'
    assert element("img", src="x") == '<img src="x">'
    assert joined(["<", element("i")]) == "&lt;<i></i>"


def test_numbers():
    texts = {None: "-", 0: "0", 1234567.0: "1,234,567", 100.4: "100", 12.345: "12.3", 2.0: "2.00", 99.96: "100"}
    texts |= {0.00123: "0.00123", 0.00001234: "1.2e-05", -3.0: "-3.00"}
    assert {value: number(value) for value in texts} == texts
    assert (error(None), error(1.23e-6)) == ("-", "1.2e-06")


def luminance(colour):
    digits = colour if len(colour) == 6 else "".join(2 * digit for digit in colour)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_colour_of_text_can_be_read():
    for scheme in CSS.split("@media (prefers-color-scheme: dark)")[:2]:  # light, dark
        check_colours(dict(re.findall(r"--(\w+): #(\w+)", scheme)))


def check_colours(colours):
    for name in ("ink", "soft", "link", "good", "bad", "comment", "word", "text", "directive"):
        for ground in ("paper", "panel"):
            high, low = sorted((luminance(colours[name]), luminance(colours[ground])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (name, ground)


def test_highlighting_keeps_the_text():
    text = '#include "a.cuh"  // a < b\n/* two\nlines */ const char* s = "if // \\" no"; int iffy = \'"\';\n'
    shown = highlight(text)
    assert Page(shown).sections[""] == text
    for kind, token in (("d", "#include"), ("c", "// a &lt; b"), ("k", "const"), ("k", "int")):
        assert f'<span class="{kind}">{token}</span>' in shown
    assert ">if<" not in shown


# Rooflines

ROOF = Roof(4e12, 6e13, 3.3e14)


def texts(chart):
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([^<]+)</text>', chart)
    return [(float(x), float(y), anchor, text) for x, y, anchor, text in found]


def box(x, y, anchor, text):
    width = 6.5 * len(text)
    left = x - {"start": 0, "middle": width / 2, "end": width}[anchor]
    return left, y - 10, left + width, y + 2


@pytest.mark.parametrize("count", [1, 13, 25])
def test_no_text_lies_over_another_though_dots_do(count):
    dots = [Dot(place, f"step {place}", 300 * (1 + place % 3 / 100), 2e14) for place in range(count)]
    chart = draw([*dots, Dot(count, "gemm", 0.5, 2e12)], ROOF, "all")
    found = texts(chart)
    assert chart.count("<circle") == count + 1
    assert [text for *_, text in found][-count - 1 :] == [str(place) for place in range(count + 1)]
    for one, other in combinations([box(*each) for each in found], 2):
        assert one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3] or other[1] >= one[3], (one, other)
