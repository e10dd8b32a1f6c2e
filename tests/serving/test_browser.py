"""The page in a real browser, by file, drop, paste and keyboard, light and dark, narrow and wide, by playwright."""

from __future__ import annotations

import base64
import shutil

import pytest

from tests.serving.running import serving
from tests.serving.test_faults import until
from tests.serving.test_serve import SAMPLE

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
PATIENCE = 60_000  # milliseconds that a step may take on a slow machine
# As in a browser, a drop follows only where the page has taken the dragover.
GIVE = """([gesture, base64, name, type]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(atob(base64), letter => letter.charCodeAt(0))], name, { type }));
  const events = {
    paste: options => [new ClipboardEvent("paste", { ...options, clipboardData: data })],
    drop: options => ["dragover", "drop"].map(kind => new DragEvent(kind, { ...options, dataTransfer: data })),
  };
  const place = document.getElementById("drop");
  return events[gesture]({ bubbles: true, cancelable: true }).some(event => place.dispatchEvent(event));
}"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


class Looked:
    """A page that is open, and everything that went wrong in it or was asked of another server."""

    def __init__(self, browser, port, width=1400, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        here = f"http://127.0.0.1:{port}/"
        self.page.on("request", lambda asked: self.wrong.append(asked.url) if not is_here(asked.url, here) else None)
        self.page.goto(here)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def show(self):
        """Choose the digit and wait until all is drawn."""
        self.page.wait_for_selector("#picture:not([hidden])")
        self.page.set_input_files("#file", SAMPLE)
        self.drawn()

    def give(self, gesture, data, name, kind):
        """Drop or paste a file; whether the browser would do with it what it does by itself."""
        self.page.wait_for_selector("#picture:not([hidden])")
        return self.page.evaluate(GIVE, [gesture, base64.b64encode(data).decode(), name, kind])

    def drawn(self):
        """Wait until all of a picture is drawn."""
        self.page.wait_for_selector("#rests:not([hidden])")
        self.until("document.getElementById('status').textContent.startsWith('Shown')")

    def until(self, condition):
        """Wait for an expression; the page's own policy forbids the browser to watch it."""
        until(lambda: self.page.evaluate(condition))

    def text(self, selector):
        return self.page.inner_text(selector)


def is_here(url, here):
    return url.startswith((here, f"blob:{here}", "data:"))


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
def test_a_picture_is_answered_and_explained(server, browser, width, scheme):
    with Looked(browser, server.port, width, scheme) as looked:
        looked.show()
        page = looked.page
        assert page.locator("#top li").count() == 5
        assert looked.text("#top li:first-child").split()[0] == "2"  # what the sample shows
        assert {"decoding", "in the queue", "on the device"} <= set(looked.text("#stage-list").split("\n"))
        assert page.locator("#maps canvas").count() == 16
        colours = page.evaluate(
            """[...document.querySelectorAll('#heat, #maps canvas')].map(canvas => new Set(new Uint32Array(
               canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size)"""
        )
        assert min(colours) > 1
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert shade == {"dark": "rgb(13, 17, 23)", "light": "rgb(255, 255, 255)"}[scheme]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.evaluate("document.getElementById('layer').selectedOptions[0].text = '/a/long/name/of/a/layer'.repeat(9)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        looked.until("document.querySelectorAll('#figures dd').length === 5")
        assert looked.wrong == []


def test_the_keyboard_and_names_for_screen_readers_are_enough(server, browser):
    with Looked(browser, server.port) as looked:
        page = looked.page
        page.wait_for_selector("#picture:not([hidden])")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "file"
        looked.show()
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.dataset.index") != "2"
        page.keyboard.press("Enter")
        looked.until("document.querySelector('#top li:nth-child(2) button').ariaPressed === 'true'")
        other = page.evaluate("document.activeElement.firstChild.textContent")
        looked.until(f"document.getElementById('heat-text').textContent === 'what {other} rests on'")
        page.get_by_label("Layer").select_option("pool3")
        looked.until("document.getElementById('shape').textContent === '32 of 64, 4\u00d74 each'")
        unnamed = page.evaluate(
            """[...document.querySelectorAll('button, input, select, canvas, section')].filter(element =>
               !element.hidden && !(element.ariaLabel || element.labels?.length || element.innerText.trim())).length"""
        )
        assert unnamed == 0
        assert looked.wrong == []


@pytest.mark.parametrize("gesture", ["drop", "paste"])
def test_a_picture_that_is_dropped_or_pasted_is_answered_as_one_that_is_chosen(server, browser, gesture):
    with Looked(browser, server.port) as looked:
        by_itself = looked.give(gesture, SAMPLE.read_bytes(), SAMPLE.name, "image/png")
        assert gesture == "paste" or not by_itself  # or the browser opens the file in place of the page
        looked.drawn()
        top = looked.text("#top")
        assert looked.page.evaluate("document.getElementById('preview').naturalWidth") > 0
        looked.show()
        assert looked.text("#top") == top
        assert top.split()[0] == "2"
        assert looked.wrong == []


@pytest.mark.parametrize("kind", ["text/plain", "image/png"])
def test_what_is_no_picture_is_one_line_when_it_is_dropped(server, browser, kind):
    with Looked(browser, server.port) as looked:
        assert not looked.give("drop", b"no picture", "broken", kind)
        looked.page.wait_for_selector("#error:not([hidden])")
        (line,) = looked.page.evaluate("document.getElementById('error').textContent").splitlines()
        assert line.startswith("Error: ")
        assert "not a readable image" in line
        assert looked.page.locator("#answer").is_hidden()
        looked.until("document.getElementById('preview').hidden")
        assert [said for said in looked.wrong if "status of 400" not in said] == []  # no exception, only the reply


def test_a_token_is_asked_for(browser, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    options = ("--workers", "1", "--batch", "1", "--token-file", str(tokens))
    with serving(*options) as server, Looked(browser, server.port) as looked:
        for given in ("wrong", "secret"):
            looked.page.wait_for_selector("dialog[open]")
            looked.page.keyboard.type(given)
            looked.page.keyboard.press("Enter")
        looked.show()
