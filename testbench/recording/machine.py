"""The card that is here to record on, by the words that names of records have for it."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import Final

QUERY: Final = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
_BRANDS: Final = re.compile(r"\b(NVIDIA|GeForce|Tesla|Quadro)\b")
_MEMORY: Final = re.compile(r"[ -]\d+ ?GB.*")


@dataclass(frozen=True)
class Card:
    """A card as file names have it: h200, and sm_90."""

    name: str
    arch: str


CPU: Final = Card("cpu", "cpu")
NONE: Final = Card("CARD", "ARCH")  # where commands are shown and there is no card


def find_card() -> Card | None:
    """The first card that nvidia-smi names. Opens no context: a start beside one would be another start."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    first = (done.stdout.splitlines() or [""])[0]
    name, _, capability = first.rpartition(",")
    if done.returncode or not re.fullmatch(r"\d+\.\d+", capability.strip()):
        return None
    return Card(short_name(name), f"sm_{capability.strip().replace('.', '')}")


def short_name(name: str) -> str:
    """NVIDIA H100 80GB HBM3 is h100."""
    words = _MEMORY.sub("", _BRANDS.sub("", name)).split()
    return "-".join(words).lower()
