"""bench of a file that rounds by itself: in precisions that do not, ours and the peers' are checked without it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.bench.test_bench import bench
from tests.bench.test_peers import setting
from tests.support.quantised_nets import inputs, quantised, vgg
from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.peers.base import open_peer
from vgg16gpu.bench.records.record import read, select
from vgg16gpu.checks.accuracy import PEER_TOLERANCES, score_error
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.quantised_file import without_rounding

pytestmark = pytest.mark.usefixtures("measured_ceilings")


@pytest.mark.slow(reason="checks/test_qdq_oracle.py has what it is checked against, test_bench.py a whole run")
def test_a_quantised_file_is_checked_without_its_rounding(tmp_path: Path) -> None:
    """No precision but int8 rounds: beside the file as it stands every time would be refused."""
    path, output = quantised(vgg("hardtanh"), tmp_path / "m.onnx", scale=3.0), tmp_path / "result.json"
    options = ("--batch", 1, "--repeats", 1, "--output", output)
    result = bench(path, *options)
    assert result.exit_code == 0, result.stderr
    assert all(0 < record["error"] <= 1e-5 for record in select(read(output), name=NAME))


@pytest.mark.parametrize("name", ["torch", "jax"])
@pytest.mark.filterwarnings("default")
def test_frameworks_clip_where_a_quantised_file_saturates(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    path, x = quantised(vgg("hardtanh"), tmp_path / "m.onnx", scale=3.0), inputs(2, 99, 3.0)
    expected = Oracle(path, edit=without_rounding).scores(x)
    with closing(open_peer(name, setting(path))) as peer:
        found = peer.ways(x)[0].make().scores()
    assert score_error(found, expected).max() <= PEER_TOLERANCES["fp32"]
