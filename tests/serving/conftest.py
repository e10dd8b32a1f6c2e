"""What tests of the server share: one server of the digits, and what Engine.run gives for them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.serving.running import require_extra, serving
from vgg16gpu import Engine
from vgg16gpu.io.shipped import digits_model

BATCH = 4  # the largest


@pytest.fixture(scope="session")
def extra():
    """Skip where the server's packages are not installed."""
    require_extra()


@pytest.fixture(scope="session")
def server():
    """The digits, with a layer beside the scores."""
    require_extra()
    with serving("--batch", str(BATCH), "--workers", "1") as running:
        yield running


@pytest.fixture(scope="session")
def run_at():
    """run(rows, batch): what Engine.run gives at a batch size."""
    engines = {batch: Engine(digits_model(), device="cpu", batch=batch) for batch in (1, 2, BATCH)}
    yield lambda rows, batch: np.concatenate(
        [engines[batch].run(rows[i : i + batch]) for i in range(0, len(rows), batch)]
    )
    for engine in engines.values():
        engine.close()


@pytest.fixture(scope="session")
def digits():
    """16 inputs of random numbers, as the model takes them."""
    return np.random.default_rng(3).standard_normal((16, 1, 32, 32)).astype(np.float32)
