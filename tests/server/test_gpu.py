"""The server on a GPU: slots are pinned there, several batches are under way, a front end may come again."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.server.running import require_extra, serving
from tests.server.test_serve import batch_of, binary_request, scores
from tests.support.kernel_harness import assert_same_bits
from vgg16gpu import Engine
from vgg16gpu.io.shipped import digits_model

pytestmark = pytest.mark.gpu

BATCHES = (1, 2, 4, 8)


@pytest.mark.parametrize("name", ["FP32", "UINT8"])
def test_answers_are_those_of_the_engine(name):
    require_extra()
    random = np.random.default_rng(9)
    rows = random.standard_normal((8, 1, 32, 32)).astype(np.float32)
    if name == "UINT8":
        rows = random.integers(0, 256, (8, 32, 32, 1), dtype=np.uint8)
    wanted = {}
    for batch in BATCHES:
        with Engine(digits_model(), device="cuda", batch=batch) as engine:
            wanted[batch] = engine.run(rows)
    with serving("--devices", "cuda:0", "--batch", str(BATCHES[-1]), "--workers", "1") as server:

        def ask(number):
            for _ in range(50):
                reply = server.infer(*binary_request(rows[number : number + 1], name))
                assert_same_bits(scores(reply), wanted[batch_of(reply)][number : number + 1])

        for _ in range(2):
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(ask, range(8)))
            (end,) = server.children("front-end")
            os.kill(end, signal.SIGKILL)
            server.ready()
