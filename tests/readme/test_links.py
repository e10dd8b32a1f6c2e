"""Links between the pages of the project: each leads to a file, and to a heading where it names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.readme.links import anchors, dead_links, links

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT)) for folder in (".", "docs", "models") for path in (ROOT / folder).glob("*.md")
)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    assert dead_links(ROOT / page) == []


def test_the_pages_have_links() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/kernels.md", "models/README.md"} <= set(PAGES)
    assert len(links((ROOT / "README.md").read_text(encoding="utf-8"))) > 10


def test_links_are_those_within_the_project() -> None:
    page = """[a](b.md) ![c](d.png "title") [e](https://f/g) [h](#i), `[j](k)` <img src="l.svg"> [![m](n)](o)
```sh
[p](q)
```
[r](mailto:s@t)"""
    assert links(page) == ["b.md", "d.png", "#i", "l.svg", "n", "o"]


def test_anchors_are_those_of_github() -> None:
    page = """# How fast, how exact (VGG16)
## `infer`: one_two -- three
### [Link](x.md) again
## Link again
## Link again
Text
```sh
# no heading
```
<a id="own"></a>"""
    assert anchors(page) == {
        "how-fast-how-exact-vgg16",
        "infer-one_two----three",
        "link-again",
        "link-again-1",
        "link-again-2",
        "own",
    }


def test_a_dead_link_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# There\n")
    (tmp_path / "code.py").touch()
    page.write_text(
        "# Here\n[a](#here) [b](#there) [c](other.md#there) [d](other.md#here) [e](code.py#L3) [f](none.md)"
    )
    assert dead_links(page) == ["#there", "other.md#here", "none.md"]
