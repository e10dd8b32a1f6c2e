"""Shards on Ray: two faked nodes; an actor, a node and the driver are killed, and the rows are those of a plain run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

from tests.support.picture_files import jpeg
from tests.support.ray_here import ROOT, environment, faked_cluster
from vgg16gpu.cli import cli

PICTURES, SHARD = 2000, 100
SHARDS = PICTURES // SHARD
DIFFERENT = 50  # pictures; each lies there under forty names


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution and a matrix on pictures of 3x16x16: what takes time is what is around it."""
    chance = np.random.default_rng(0)
    weights = {"w": chance.standard_normal((4, 3, 3, 3), np.float32), "m": chance.standard_normal((784, 7), np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Gemm", ["f", "m"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 3, 16, 16]), ("y", ["n", 7]))
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 2,000 names of pictures, one of which is broken."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(DIFFERENT):
        (folder / f"{number:04}.jpg").write_bytes(jpeg(24, 32, seed=number))
    for number in range(DIFFERENT, PICTURES - 1):
        (folder / f"{number:04}.jpg").hardlink_to(folder / f"{number % DIFFERENT:04}.jpg")
    (folder / f"{PICTURES - 1:04}.jpg").write_text("broken")
    return folder


def command(model: Path, *arguments: object) -> list[str]:
    return [*map(str, ("infer", "--model", model, "--device", "cpu", "--batch", 8, "--top", 3, "--quiet", *arguments))]


def infer(model: Path, *arguments: object) -> Any:
    return CliRunner().invoke(cli, command(model, *arguments))


@pytest.fixture(scope="module")
def plain(model: Path, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The rows of one plain run."""
    path = tmp_path_factory.mktemp("plain") / "rows.parquet"
    assert infer(model, pictures, "--output", path).exit_code == 1
    return pq.read_table(path)


def rows(output: Path) -> Any:
    return pa.concat_tables(pq.read_table(path) for path in sorted(output.glob("part-*.parquet")))


def computed(output: Path) -> list[dict[str, Any]]:
    """A line for each shard that was computed."""
    return [json.loads(line) for path in output.glob("_log/*") for line in path.read_text().splitlines()]


@pytest.fixture
def start(model: Path, pictures: Path) -> Iterator[Callable[..., Any]]:
    """Starts drivers; ends those that are left."""
    started: list[Any] = []

    def starting(address: str, output: Path) -> Any:
        words = command(model, "--ray", address, "--shard-size", SHARD, pictures, "--output", output, "--workers", 1)
        process = subprocess.Popen(
            [sys.executable, "-m", "vgg16gpu", *words], cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield starting
    for process in started:
        process.kill()
        process.communicate()


def wait_for_parts(output: Path, count: int, process: Any) -> None:
    deadline = time.monotonic() + 120
    while len(list(output.glob("part-*"))) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def actor_of(output: Path) -> int:
    """The process of an actor that has computed a shard."""
    name = max(output.glob("_log/*"), key=lambda path: path.stat().st_mtime).stem
    return int(name.rsplit("-", 2)[1])


@pytest.mark.slow(reason="Ray takes half a minute to start; tests/cli/test_infer_shards.py kills a process, too")
@pytest.mark.alone(reason="Ray takes every core")
def test_whoever_is_killed_the_rows_are_those_of_a_plain_run(
    plain: Any, start: Callable[..., Any], tmp_path: Path
) -> None:
    output = tmp_path / "rows"
    with faked_cluster() as (cluster, nodes):
        driver = start(cluster.address, output)
        wait_for_parts(output, 1, driver)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        before = {path: path.stat().st_mtime_ns for path in output.glob("part-*")}
        assert 0 < len(before) < SHARDS
        assert not (output / "_SUCCESS").exists()

        driver = start(cluster.address, output)
        wait_for_parts(output, len(before) + 2, driver)
        os.kill(actor_of(output), signal.SIGKILL)
        wait_for_parts(output, len(before) + 5, driver)
        cluster.remove_node(nodes[0])
        told = driver.communicate(timeout=200)[1]
        assert driver.returncode == 1, told  # one picture is broken

    found = rows(output)
    assert found.equals(plain.cast(found.schema))  # none lost, none twice, in order
    counts = [line["shard"] for line in computed(output)]
    assert sorted(set(counts)) == list(range(SHARDS))
    assert {path: path.stat().st_mtime_ns for path in before} == before  # what was whole was not done again
    assert all(counts.count(int(path.stem.removeprefix("part-"))) == 1 for path in before)
    summary = json.loads((output / "_summary.json").read_text())
    assert (summary["rows"], summary["errors"], summary["shards"]) == (PICTURES, 1, SHARDS)
    assert (output / "_SUCCESS").exists()
    assert not (output / "_temporary").exists()


def test_without_ray_one_line_says_what_to_install(
    model: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = infer(model, "--ray", "local:2", pictures, "--output", tmp_path / "rows")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "pip install 'vgg16gpu[ray]'" in result.stderr
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ray", "nowhere"), "'nowhere' is no Ray cluster"),
        (("--ray", "local:0"), "is no Ray cluster"),
        (("--ray", "local", "--shard", "0/1"), "give --ray or --shard"),
        (("--ray", "local", "--devices", "cpu:2"), "--ray gives each actor its device"),
    ],
)
def test_options_that_do_not_go_together(
    model: Path, pictures: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    words_of = command(model, pictures, "--output", tmp_path / "rows", *arguments)
    if "--devices" in arguments:
        words_of.remove("--device")
        words_of.remove("cpu")
    result = CliRunner().invoke(cli, words_of)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
