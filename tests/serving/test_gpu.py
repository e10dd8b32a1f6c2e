"""The server on a GPU: slots are pinned there, several batches are under way, a front end may come again."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from tests.serving.running import require_extra, serving
from tests.serving.test_serve import as_bytes, batch_of, binary_request, scores
from tests.support.kernel_harness import assert_same_bits
from tests.support.picture_files import jpeg
from vgg16gpu import Engine, classify
from vgg16gpu.devices import codec_problem
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.zoo.generate import make_vgg

pytestmark = pytest.mark.gpu

BATCHES = (1, 2, 4, 8)


@pytest.mark.parametrize("decode", ["cpu", "gpu"])
def test_pictures_are_resized_by_the_gpu(tmp_path, decode):
    """To the scores of `classify`, of files in requests of one and of several, whoever decodes them."""
    require_extra()
    if decode == "gpu" and (problem := codec_problem("cuda")):
        pytest.skip(problem)
    model, folder = tmp_path / "narrow.onnx", tmp_path / "pictures"
    make_vgg(model, variant="vgg11", size=48, width=8, hidden=16, classes=12)
    folder.mkdir()
    for i in range(24):
        data = jpeg(30 + 11 * i, 300 - 9 * i, seed=i, subsampling=2 * (i % 2))
        (folder / f"{i:02}.jpg").write_bytes(data)
    Image.open(folder / "00.jpg").save(folder / "24.png")
    files = sorted(folder.iterdir())
    options = {"device": "cuda", "batch": 8, "kernels": "ffma"}
    wanted = [answer.scores for answer in classify([folder], model, decode=decode, **options)]
    with serving("--devices", "cuda:0", "--decode", decode, "--batch", "8", model=str(model)) as server:

        def ask(first, last):
            raw = as_bytes(*(file.read_bytes() for file in files[first:last]))
            given = {"datatype": "BYTES", "shape": [last - first], "parameters": {"binary_data_size": len(raw)}}
            reply = server.infer({"inputs": [{"name": "input", **given}]}, raw, name="narrow")
            for row, right in zip(scores(reply), wanted[first:last], strict=True):
                np.testing.assert_allclose(row, right, rtol=1e-4, atol=1e-4)

        parts = [(0, 1), (1, 4), (4, 12), (12, 13), (13, 20), (20, 25)] * 4
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(lambda part: ask(*part), parts))


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
