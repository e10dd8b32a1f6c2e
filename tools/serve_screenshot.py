"""Photograph the server's page with a digit on it, for the README: docs/images/serve.png.

Needs serving/, chromium, and playwright (pip install playwright), which drives it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "vgg16gpu" / "data" / "digit_sample.png"
TARGET = ROOT / "docs" / "images" / "serve.png"
COMMAND = (sys.executable, "-m", "vgg16gpu", "serve", "digits", "--device", "cpu", "--port", "0", "--workers", "1")
WIDTH: Final = 1400
SECONDS: Final = 5  # of the server's own figures, which are live


def photograph(address: str) -> None:
    """The page behind an address, once all is drawn."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - of no extra

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": WIDTH // 2}, color_scheme="light")
        page.goto(address)
        for _ in range(SECONDS):  # the first one compiles
            page.wait_for_selector("#picture:not([hidden])")
            page.set_input_files("#file", PICTURE)
            page.wait_for_selector("#rests:not([hidden])")
            page.wait_for_timeout(1000)
        page.screenshot(path=TARGET, full_page=True)
        browser.close()


def main() -> None:
    """Start a server, take the picture, end the server."""
    with subprocess.Popen(COMMAND, cwd=ROOT, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            line = next((found for line in server.stderr if (found := re.search(r"at (http://[^,]+),", line))), None)
            if line is None:
                raise SystemExit("the server did not start")
            photograph(line[1])
        finally:
            server.terminate()
    print(f"Written: {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
