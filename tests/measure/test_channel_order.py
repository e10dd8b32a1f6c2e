"""measure/channel_order.py: files of other orders are other files of one function, and all of them are measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.measure import channel_order
from tests.measure.channel_order import FILE, RANDOM, ZEROS, check_function, orders_of, save_orders
from vgg16gpu.bench.session import sample_inputs
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.runtime.engine import Engine


def test_channels_change_places_and_scores_stay(tmp_path: Path) -> None:
    with Engine(digits_model(), device="cpu", batch=2, keep_values=True) as engine:
        x = sample_inputs(tuple(engine.program.input.shape[1:]))[:2]
        orders = orders_of(engine, x)
        expected = engine.run(x)
    files = save_orders(digits_model(), orders, tmp_path)
    firsts = {}
    for name, path in files.items():
        with Engine(path, device="cpu", batch=2, keep_values=True) as engine:
            np.testing.assert_allclose(engine.run(x), expected, rtol=0, atol=2e-6)
            shares = [(value == 0).mean(axis=(0, 2, 3)) for _, value in engine.read_values() if value.ndim == 4]
        firsts[name] = numpy_helper.to_array(onnx.load(path).graph.initializer[0])
        are_sorted = [bool((np.diff(share) >= -1e-3).all()) for share in shares[1:]]
        assert all(are_sorted) == (name == ZEROS)
    assert np.array_equal(firsts[RANDOM], firsts[FILE][orders[RANDOM][0]])
    assert not np.array_equal(firsts[RANDOM], firsts[FILE])


def test_another_function_is_refused(tmp_path: Path) -> None:
    changed = onnx.load(digits_model())
    bias = next(tensor for tensor in changed.graph.initializer if len(tensor.dims) == 1)
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + 1, bias.name))
    onnx.save(changed, tmp_path / "changed.onnx")
    x = np.zeros((1, 1, 32, 32), np.float32)
    with pytest.raises(ModelError, match="at random the network is another one"):
        check_function({FILE: digits_model(), RANDOM: tmp_path / "changed.onnx"}, "cpu", x)


@pytest.mark.slow(reason="of a measure that authors run")
def test_a_record_of_every_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "record.json"
    words = ["--device", "cpu", "--precision", "fp32,int8", "--batch", "2", "--seconds", "0.01", "--rounds", "2"]
    assert channel_order.main([str(digits_model()), *words, "--output", str(output)]) == 0
    record = json.loads(output.read_text())
    assert record["environment"]["device"]["kind"] == "cpu"
    rows = record["rows"]
    assert [(row["precision"], row["order"]) for row in rows] == [
        (precision, order) for precision in ("fp32", "int8") for order in (FILE, ZEROS, RANDOM)
    ]
    assert all(row["seconds"] > 0 and len(row["ratios"]) == 2 for row in rows)
    assert all(row["ratios"] == [1, 1] and row["difference"] == 0 for row in rows if row["order"] == FILE)
    assert all(row["difference"] <= (1e-5 if row["precision"] == "fp32" else 0) for row in rows)
    assert "fp32 by zeros" in capsys.readouterr().out
