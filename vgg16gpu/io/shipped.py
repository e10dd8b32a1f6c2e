"""The model that the package ships, by its name: "digits", on the command line and for `Engine`.

`zoo/digits.py` says what it is. No imports: a command line asks before numpy is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

NAME: Final = "digits"
DATA: Final = Path(__file__).resolve().parents[1] / "data"


def digits_model() -> Path:
    """Return the path of the trained ONNX file."""
    return DATA / "digits.onnx"


def is_digits(model: object) -> bool:
    """Return whether a model's name means this net: no file of that name is in the way."""
    return model == NAME and not Path(NAME).exists()
