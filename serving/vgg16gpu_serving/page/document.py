"""The page as it is sent: one file, and a policy that keeps the browser from asking any other server."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources


@cache
def document() -> tuple[bytes, list[tuple[str, str]]]:
    """Return the file's bytes, and its headers. Raises nothing: the file is part of the package."""
    text = resources.files("vgg16gpu_serving.page").joinpath("page.html").read_text(encoding="utf-8")
    style, script = (_digest(re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)) for tag in ("style", "script"))
    policy = (
        f"default-src 'none'; style-src {style}; script-src {script}; img-src blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = [
        ("content-type", "text/html; charset=utf-8"),
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
    ]
    return text.encode(), headers


def _digest(parts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
