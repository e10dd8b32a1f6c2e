"""io/preprocessing.py by the name that people know."""

from vgg16gpu.io.preprocessing import Preprocess

__all__ = ["Preprocess"]
