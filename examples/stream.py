"""Classify more pictures than fit into memory: the device computes while the next ones are read.

python examples/stream.py
"""

import time
from collections.abc import Iterator

import numpy as np

from vgg16gpu import Engine
from vgg16gpu.zoo.digits import DIGITS_MEAN, DIGITS_STD, heldout

images, _, digits = (part[:100] for part in heldout())


def pictures() -> Iterator[np.ndarray]:
    """Some at a time, here from an array; with you from a camera, a disk or a network."""
    for first in range(0, len(images), 10):
        yield images[first : first + 10]


with Engine("digits", batch=[8, 32], mean=DIGITS_MEAN, std=DIGITS_STD) as engine:
    start = time.perf_counter()
    # The engine makes full batches of what comes, and gives back the scores of each item, in order.
    answers = np.concatenate([np.argmax(scores, axis=1) for scores in engine.stream(pictures())])
    seconds = time.perf_counter() - start

right, rate = np.mean(answers == digits), len(digits) / seconds
print(f"{right:.1%} of {len(digits)} digits are right, {rate:,.0f} pictures a second")
