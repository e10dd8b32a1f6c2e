"""Tables of measured tiles: written, found by the card's name, asked, and ignored where they do not fit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.tune_device import H200
from vgg16gpu.bench.tune.tasks import distinct, tasks, vgg_graph
from vgg16gpu.compiler.op_kernels.conv import conv_first, conv_first_two, conv_wgmma
from vgg16gpu.compiler.op_kernels.conv.conv_wgmma_tiles import ConvDesc, LargeTile
from vgg16gpu.compiler.op_kernels.gemm import fc_wgmma
from vgg16gpu.compiler.vgg.architecture import Vgg
from vgg16gpu.devices import tuned
from vgg16gpu.errors import ModelError
from vgg16gpu.program.types import DType

GPU = "NVIDIA H200"
CONV = ConvDesc(1, 28, 28, 256, 512, DType.F16, DType.F16, pool=False)
FIRST = conv_first.FirstConvDesc(8, 224, 224, 64, DType.F16)
CHAIN = conv_first_two.ConvPairDesc(8, 224, 224, DType.F16)
GEMV = fc_wgmma.GemmDesc(1, 4096, 25088, DType.F16)
GEMM = fc_wgmma.GemmDesc(128, 1000, 4096, DType.F16)
OP_MODULES = [(conv_wgmma, CONV), (conv_first, FIRST), (conv_first_two, CHAIN), (fc_wgmma, GEMV), (fc_wgmma, GEMM)]


def with_table(tiles):
    return replace(H200, tuned=tiles)


# ---- Files


def test_what_is_written_is_read(tmp_path):
    tiles = {"a problem": {"tile": "LargeTile", "rows": 28}, 'one "more"': {"tile": "SmallTile", "rows": 4}}
    path = tuned.own_path(GPU, tmp_path)
    path.parent.mkdir()
    tuned.write(path, GPU, tiles, {"driver": "580"})
    assert tuned.table(GPU, tmp_path, tmp_path / "no package") == tiles
    assert json.loads(path.read_text())["made"] == {"driver": "580"}


def test_the_users_word_goes_before_the_packages(tmp_path):
    package, cache = tmp_path / "package", tmp_path / "cache"
    package.mkdir()
    tuned.own_path(GPU, cache).parent.mkdir(parents=True)
    tuned.write(package / tuned.file_name(GPU), GPU, {"both": {"rows": 1}, "package": {"rows": 2}}, {})
    tuned.write(tuned.own_path(GPU, cache), GPU, {"both": {"rows": 3}, "own": {"rows": 4}}, {})
    found = tuned.table(GPU, cache, package)
    assert found == {"both": {"rows": 3}, "package": {"rows": 2}, "own": {"rows": 4}}


def test_another_run_keeps_what_it_has_not_measured(tmp_path):
    path = tmp_path / "t.json"
    tuned.write(path, GPU, {"a": {"rows": 1}, "b": {"rows": 1}}, {})
    tuned.write(path, GPU, {"b": {"rows": 2}}, {})
    assert json.loads(path.read_text())["tiles"] == {"a": {"rows": 1}, "b": {"rows": 2}}


def test_only_the_exact_name_counts(tmp_path):
    tuned.write(tmp_path / tuned.file_name(GPU), GPU, {"a": {"rows": 1}}, {})
    (tmp_path / tuned.file_name("NVIDIA H100")).write_bytes((tmp_path / tuned.file_name(GPU)).read_bytes())
    assert tuned.table(GPU, tmp_path / "no cache", tmp_path)
    assert not tuned.table("NVIDIA H100", tmp_path / "no cache", tmp_path)
    assert not tuned.table("NVIDIA_H200", tmp_path / "no cache", tmp_path)  # the same file, another card


def test_a_card_without_a_table_takes_the_nearest_of_its_capability(tmp_path, caplog):
    def ship(gpu, capability, multiprocessors):
        made = {"device": {"compute_capability": capability, "multiprocessors": multiprocessors}}
        tuned.write(tmp_path / tuned.file_name(gpu), gpu, {"a": {"card": gpu}}, made)

    ship("many", [9, 0], 132)
    ship("few", [9, 0], 78)
    ship("other", [10, 0], 114)
    (tmp_path / "broken.json").write_text('{"gpu": "x"}')

    def taken(multiprocessors, capability=(9, 0), gpu="new"):
        kin = tuned.Kin(capability, multiprocessors)
        return tuned.table(gpu, tmp_path / "no cache", tmp_path, kin).get("a", {}).get("card")

    assert [taken(132), taken(114), taken(100), taken(78)] == ["many", "many", "few", "few"]
    assert taken(114, gpu="few") == "few"
    assert taken(132, (8, 0)) is None
    assert taken(132, (10, 0)) == "other"
    assert "broken.json is no table of tiles" in caplog.text


def test_names_of_cards_are_safe_file_names():
    assert tuned.file_name("NVIDIA H100 80GB HBM3") == "NVIDIA_H100_80GB_HBM3.json"
    assert tuned.file_name("../a/b") == ".._a_b.json"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"gpu": "NVIDIA H200"}', '{"gpu": "NVIDIA H200", "tiles": {"a": 1}}',
             '{"gpu": "NVIDIA H200", "tiles": {"a": {"rows": [1]}}}', '{"gpu": "NVIDIA H200", "tiles": []}']
)  # fmt: skip
def test_a_damaged_table_is_passed_over(tmp_path, caplog, text):
    (tmp_path / tuned.file_name(GPU)).write_text(text)
    assert tuned.table(GPU, tmp_path / "no cache", tmp_path) == {}
    assert "NVIDIA_H200.json is no table of tiles" in caplog.text


def test_a_table_that_cannot_be_written(tmp_path):
    with pytest.raises(ModelError, match="cannot be written"):
        tuned.write(tmp_path / "missing" / "t.json", GPU, {}, {})


# ---- What the op modules make of them


@pytest.mark.parametrize(("ops", "problem"), OP_MODULES)
def test_every_candidate_can_be_asked_for(ops, problem):
    for choice in ops.candidates(problem, H200.multiprocessors):
        found = ops.choose(problem, with_table({problem.key: choice.entry}))
        assert (found.tile, found.programmatic) == (choice.tile, choice.programmatic)
        found = ops.choose(problem, with_table({problem.key: {**choice.entry, "early": 1 - choice.entry["early"]}}))
        assert (found.tile, found.programmatic) == (choice.tile, not choice.programmatic)


@pytest.mark.parametrize(("ops", "problem"), OP_MODULES)
def test_an_entry_that_does_not_fit_is_ignored(ops, problem):
    usual = ops.choose(problem, H200)
    other = ops.candidates(problem, H200.multiprocessors)[1].entry
    number = next(name for name in other if name not in ("tile", "early"))
    stale = [
        {},
        {**other, "tile": "NoTile"},
        {**other, "tile": 3},
        {**other, "early": 2},
        {**other, "new": 1},
        {**other, number: "1"},
        {**other, number: 10**6},
        {**other, number: -1},
        {**other, number: 0},
        {name: value for name, value in other.items() if name != number},
        {name: value for name, value in other.items() if name != "early"},
    ]
    for entry in stale:
        assert ops.choose(problem, with_table({problem.key: entry})) == usual, entry
    assert ops.choose(problem, with_table({problem.key: other})) != usual


def test_a_tile_of_another_problem_is_ignored():
    flat = LargeTile(4, flat_pitch=29)
    entry = conv_wgmma.Choice(flat, programmatic=True).entry
    assert conv_wgmma.choose(CONV, with_table({CONV.key: entry})).tile == flat
    wider = replace(CONV, height=30, width=30)
    assert conv_wgmma.choose(wider, with_table({wider.key: entry})) == conv_wgmma.choose(wider, H200)
    gemv = fc_wgmma.choose(GEMV, H200)
    assert fc_wgmma.choose(GEMM, with_table({GEMM.key: gemv.entry})) == fc_wgmma.choose(GEMM, H200)


def test_blocks_that_wait_for_each_other_are_all_resident():
    choice = next(c for c in conv_wgmma.candidates(CONV, 132) if getattr(c.tile, "exchange", 0) == 2)
    small = replace(H200, multiprocessors=2, tuned={CONV.key: choice.entry})
    assert conv_wgmma.choose(CONV, small).tile != choice.tile


def test_the_gemm_of_a_long_sum_keeps_its_accuracy():
    long = replace(GEMM, length=25088)
    assert min(choice.tile.splits for choice in fc_wgmma.candidates(long, 132)) == 4  # 25088 / 8192
    short = fc_wgmma.Choice(fc_wgmma.GemmTile(128, 64, 3), programmatic=False).entry
    assert fc_wgmma.choose(long, with_table({long.key: short})) == fc_wgmma.choose(long, H200)


# ---- The tables of the package


@pytest.mark.parametrize("path", sorted(tuned.TABLES.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_tables_hold_for_vgg16(path, tmp_path):
    gpu = json.loads(path.read_text())["gpu"]
    assert tuned.file_name(gpu) == path.name
    facts = with_table(tuned.table(gpu, tmp_path))
    shapes = [(batch, 3, 224, 224) for batch in (1, 8, 32, 128)]
    for task in distinct(tasks(vgg_graph(Vgg()), facts, ("fp32", "fp16", "bf16", "int8"), shapes)):
        if task.key in facts.tuned:
            choice = task.kernels.choose(task.problem, facts)
            assert conv_wgmma.Choice(choice.tile, choice.programmatic).entry == facts.tuned[task.key], task.key
