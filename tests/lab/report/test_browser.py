"""The page in a real browser, where there is one: it is looked at through a screenshot.

A probe at its end looks for what must not be and paints the page in a colour that says what it has found.
"""

import shutil
import subprocess

import pytest
from PIL import Image

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox")
FOUND = next((path for name in BROWSERS if (path := shutil.which(name))), None)
HEIGHT = 900
SECONDS = 120

CLEAN, SCROLLS, OVERLAPS, NO_IMAGE, OTHER_WIDTH = (0, 255, 0), (255, 0, 0), (255, 255, 0), (255, 0, 255), (0, 0, 255)
COVERED, SHUT = (0, 255, 255), (255, 255, 255)
PROBE = """<script>const look = () => {
  const root = document.documentElement, over = (a, b) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  document.body.hidden = false;
  if (OPEN) for (const fold of document.querySelectorAll("details")) fold.open = true;
  const overlap = [...document.querySelectorAll("svg")].some(svg => {
    const boxes = [...svg.querySelectorAll("text")].map(text => text.getBoundingClientRect()).filter(box => box.width);
    return boxes.some((a, i) => boxes.slice(i + 1).some(b => over(a, b)));
  });
  const nav = document.querySelector("nav"), covers = nav && [...nav.querySelectorAll("a")].some(link => {
    location.replace(link.hash);
    const top = document.querySelector(`${link.hash} h2`).getBoundingClientRect().top;
    const {top: above, bottom} = nav.getBoundingClientRect(), room = root.scrollHeight - scrollY - innerHeight;
    return Math.abs(above) > 1 || bottom > HEIGHT / 10 || top < bottom || (top > bottom + HEIGHT / 10 && room > 1);
  });
  const links = [...document.querySelectorAll("main a")], shut = links.length && [links[0], links.at(-1)].some(link => {
    location.replace(link.hash);
    const code = document.getElementById(link.hash.slice(1)).querySelector("pre:last-child").getBoundingClientRect();
    return code.height < 50;
  });
  const colour = innerWidth != WIDTH ? "#00f" : root.scrollWidth > root.clientWidth ? "#f00" : overlap ? "#ff0"
    : covers ? "#0ff" : shut ? "#fff" : [...document.images].some(image => !image.naturalWidth) ? "#f0f" : "#0f0";
  document.body.hidden = true;
  root.style.background = colour;
};
addEventListener("load", look);
addEventListener("resize", look);  // the window may get its width after the page has loaded
</script>"""

pytestmark = pytest.mark.skipif(FOUND is None, reason=f"none of {', '.join(BROWSERS)} is installed")


def screenshot(text, folder, width, *options):
    page, picture, profile = folder / "page.html", folder / "page.png", folder / "profile"
    page.write_text(text)
    profile.mkdir()
    if "firefox" in FOUND:
        options = [*options, "--headless", "--no-remote", "--profile", profile, "--screenshot", picture]
    else:
        options = [*options, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        options += [f"--screenshot={picture}"]
    command = [FOUND, *options, f"--window-size={width},{HEIGHT}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert picture.is_file(), done.stderr
    with Image.open(picture) as image:
        return image.convert("RGB")


def probed(text, folder, width, *, is_open=False):
    """The colour that the probe has painted."""
    probe = PROBE.replace("OPEN", str(is_open).lower()).replace("WIDTH", str(width)).replace("HEIGHT", str(HEIGHT))
    return screenshot(f"{text}{probe}", folder, width).getpixel((width // 2, HEIGHT // 4))


@pytest.mark.slow(reason="a page of thousands of elements in a browser; test_page.py parses it")
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_it_fits_and_nothing_overlaps(full, tmp_path, width, is_open):
    assert probed(full, tmp_path, width, is_open=is_open) == CLEAN


@pytest.mark.slow(reason="a page of thousands of elements in a browser; test_page.py parses it")
@pytest.mark.parametrize("width", [400, 1400])
def test_it_can_be_seen(full, tmp_path, width):
    image = screenshot(full, tmp_path, width)
    assert image.size[0] == width
    assert len(image.getcolors(maxcolors=1 << 20)) > 10


@pytest.mark.slow(reason="a page of thousands of elements in a browser; test_parts.py has the colours")
@pytest.mark.skipif("firefox" in (FOUND or ""), reason="takes no scheme of colours")
def test_charts_are_dark_where_the_page_is(full, tmp_path):
    shares = {}
    for scheme in ("dark", "light"):
        (tmp_path / scheme).mkdir()
        option = f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
        counts = screenshot(full, tmp_path / scheme, 1400, option).convert("L").histogram()
        shares[scheme] = sum(counts[200:]) / sum(counts)
    assert shares["dark"] < 0.1
    assert shares["light"] > 0.8


NAV = "<style>nav { position: sticky; top: 0; background: red; }</style><nav><a href='#a'>a</a></nav>"
LONG = "<div style='height: 3000px'>long</div>"


@pytest.mark.slow(reason="what the slow tests of the page rely on")
@pytest.mark.parametrize(
    ("body", "colour"),
    [
        ("<p>small</p>", CLEAN),
        ("<div style='width: 3000px'>wide</div>", SCROLLS),
        ("<svg width=100 height=40><text y=20>one</text><text y=22>two</text></svg>", OVERLAPS),
        ("<img src='data:image/png;base64,AAAA'>", NO_IMAGE),
        (f"{NAV}{LONG}<section id=a style='scroll-margin-top: 3rem'><h2>a</h2></section>{LONG}", CLEAN),
        (f"{NAV}{LONG}<section id=a style='margin: 0'><h2 style='margin: 0'>a</h2></section>{LONG}", COVERED),
        (f"<nav><a href='#a'>a</a></nav>{LONG}<section id=a><h2>a</h2></section>{LONG}", COVERED),
        ("<main><a href='#a'>a</a></main><details id=a><summary>a</summary><pre>code</pre></details>", SHUT),
    ],
)
def test_the_probe_sees_faults(tmp_path, body, colour):
    assert probed(f"<!DOCTYPE html><html><body>{body}</body></html>", tmp_path, 600) == colour
