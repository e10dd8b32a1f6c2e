"""`tune` without a GPU: which problems there are, what they are checked with, who wins, what is written."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.layout.test_pack_blocks import in_blocks
from tests.support import reference
from tests.support.later import later
from tests.support.tune_device import H200, TuneDevice
from tests.support.wgmma_harness import rounded
from vgg16gpu.bench.tune import cases, search
from vgg16gpu.bench.tune.tasks import TuneTask, distinct, tasks, vgg_graph
from vgg16gpu.compiler.op_kernels.conv import conv_first, conv_first_two, conv_wgmma
from vgg16gpu.compiler.op_kernels.conv.conv_wgmma_tiles import LargeTile, SmallTile
from vgg16gpu.compiler.op_kernels.gemm import fc_wgmma
from vgg16gpu.compiler.op_kernels.wgmma import block_nbytes
from vgg16gpu.compiler.vgg.architecture import Vgg
from vgg16gpu.errors import KernelError, ModelError
from vgg16gpu.program.types import DType

SMALL = Vgg(size=32, hidden=128, classes=100)
PRECISIONS = ("fp32", "fp16", "bf16", "int8")
A100 = replace(H200, name="NVIDIA A100", compute_capability=(8, 0), tensor_maps=False)


def small_tasks(precision="fp16", batches=(1,), facts=H200):
    shapes = [(batch, 3, 32, 32) for batch in batches]
    return distinct(tasks(vgg_graph(SMALL), facts, (precision,), shapes))


def conv_task(precision="fp16", batch=1) -> TuneTask:
    """The smallest convolution that is no first one: 64 -> 128 on 16x16."""
    convs = [task for task in small_tasks(precision, (batch,)) if task.kernels is conv_wgmma]
    return next(task for task in convs if not task.problem.pool)


def right_bytes(task, spoil=None):
    """The whole output of a task as its kernels would leave it; `spoil` changes the numbers first."""
    expected = cases.case(task).expected.copy()
    if spoil:
        spoil(expected)
    stored = cases._store(task.y.element, expected).stored
    images = [stored[:, image % len(expected)] for image in range(task.problem.batch)]
    return np.ascontiguousarray(np.stack(images, axis=1)).reshape(-1).view(np.uint8)


def run(task, device, *, compiling=lambda _: None, top=6, seconds=60.0):
    deadline = time.monotonic() + seconds
    return list(search.search(device, [task], compiling, top=top, deadline=deadline))


# ---- Problems


def test_vgg16_has_so_many_problems():
    shapes = [(batch, 3, 224, 224) for batch in (1, 8)]
    found = list(tasks(vgg_graph(Vgg()), H200, PRECISIONS, shapes))
    assert len(found) == (16 + 3 * 15) * 2  # beside float32 the first two convolutions are one
    # conv5_1 is conv5_2, conv3_2 is not conv3_1
    assert len(distinct(iter(found))) == (1 + 11 + 3 + 3 * (1 + 10 + 3)) * 2
    by_kernel = [task.kernels for task in found[::2]]
    assert by_kernel[:16] == [conv_first, *[conv_wgmma] * 12, *[fc_wgmma] * 3]
    assert by_kernel[16:31] == [conv_first_two, *[conv_wgmma] * 11, *[fc_wgmma] * 3]
    assert found[2].key == (
        "conv_wgmma batch=1 height=224 width=224 channels=64 out_channels=64 "
        "element=F16_PAIR out_element=F16_PAIR pool=1"
    )
    assert found[-1].key == "fc_wgmma batch=8 outputs=1000 length=4096 element=U8"


def test_other_cards_have_nothing_to_tune():
    assert small_tasks("fp16", facts=A100) == []
    with pytest.raises(ModelError, match="nothing to tune in int8"):
        small_tasks("int8", facts=replace(A100, compute_capability=(6, 0)))


# ---- Numbers


@pytest.mark.parametrize("precision", ["fp32", "int8", *later("as fp32", "fp16", "bf16")])
def test_what_is_expected_of_a_convolution(precision):
    task = next(task for task in small_tasks(precision) if task.key.startswith("conv_wgmma") and task.problem.pool)
    case = cases.case(task)
    x = case.x.astype(np.float64) if precision != "bf16" else (case.x.astype(np.uint32) << 16).view(np.float32)
    x = x.sum(axis=0).transpose(0, 3, 1, 2)
    problem, op = task.problem, task.layer.op
    raw = cases._weights(problem.element, (problem.out_channels, problem.channels, 9))
    assert np.std(raw.exact.astype(float)) > 0
    packed, bias, dequant, _ = case.constants
    dequantised = raw.exact.astype(np.float64).reshape(-1, problem.channels, 3, 3) * dequant[:, None, None, None]
    expected = reference.apply(replace(op, weight=dequantised, bias=bias), x)
    if precision == "int8":
        expected = np.clip(np.rint(expected), 0, 255)
        assert len(np.unique(expected)) > 50  # neither all zero nor all saturated
    np.testing.assert_allclose(case.expected, expected.transpose(0, 2, 3, 1), rtol=1e-6, atol=1e-6)
    block = block_nbytes(problem.element, problem.channels) // problem.element.nbytes
    if problem.element in (DType.F16, DType.F16_PAIR):
        planes = [in_blocks(plane.astype(np.float32), DType.F16, block)[:, :, 0] for plane in raw.stored]
        assert np.array_equal(packed, np.stack(planes, axis=2))
    if precision == "int8":
        assert np.array_equal(packed, in_blocks(raw.stored[0], DType.S8, block))


@pytest.mark.parametrize("precision", PRECISIONS[1:])
def test_what_is_expected_of_two_convolutions_in_one(precision):
    """What lies between is rounded to the element, as two kernels would store it."""
    task = small_tasks(precision)[0]
    assert task.kernels is conv_first_two
    case, element = cases.case(task), task.problem.element
    first, second = case.constants
    factors = DType.S8 if precision == "int8" else element
    weights = [cases._weights(factors, (64, channels, 9)).exact for channels in (3, 64)]
    ops = [
        replace(part.op, weight=(weight * scale[:, None, None]).reshape(64, -1, 3, 3), bias=shift)
        for part, weight, scale, shift in zip(
            task.layer.parts,
            [weight.astype(np.float64) for weight in weights],
            (first.dequant, second.dequant),
            (first.bias, second.bias),
            strict=True,
        )
    ]

    def stored(values):
        return np.clip(np.rint(values), 0, 255) if precision == "int8" else rounded(values.astype(np.float32), element)

    between = stored(reference.apply(ops[0], case.x[0].astype(np.float64)))
    expected = reference.apply(ops[1], between)
    if precision == "int8":
        expected = stored(expected)
        assert len(np.unique(expected)) > 50
    np.testing.assert_allclose(case.expected, expected.transpose(0, 2, 3, 1), rtol=1e-6, atol=1e-6)
    assert second.weight.nbytes == 9 * 64 * 64 * element.nbytes


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", *later("as fp32", "fp16")])
def test_what_is_expected_of_a_product(precision):
    task = small_tasks(precision, (8,))[-1]
    case = cases.case(task)
    x = case.x.astype(np.float64) if precision != "bf16" else (case.x.astype(np.uint32) << 16).view(np.float32)
    weight, bias, dequant, _, _, _, row_scale = case.constants
    weight = weight[0].astype(np.float64) if precision != "bf16" else (weight[0].astype(np.uint32) << 16).view("f4")
    scale = (dequant * row_scale)[: len(weight)]
    expected = x.sum(axis=0) @ (weight * scale[:, None]).T + bias[: len(weight)]
    np.testing.assert_allclose(case.expected[:, : len(weight)], expected, rtol=1e-5, atol=1e-5)
    assert case.expected.shape[1] == task.y.pitch
    assert not case.expected[:, len(weight) :].any()


# ---- The search


def pace(task):
    """Every tile has a time of its own, and programmatic dependent launch helps."""
    times = {task.dry_step(choice).kernel: 1e-5 + 1e-7 * i for i, choice in enumerate(reversed(task.candidates()))}
    return lambda step: times[step.kernel] * (0.9 if step.programmatic else 1.0)


@pytest.mark.parametrize("precision", ["fp16", *later("as fp16", "int8")])
def test_the_fastest_wins(precision):
    task = conv_task(precision)
    answer, seconds = right_bytes(task), pace(task)
    device = TuneDevice(lambda _: answer, seconds)
    (finding,) = run(task, device)
    assert finding.wrong == []
    tried = search.shortlist(task, 6)
    fastest = min((replace(choice, programmatic=True) for choice in tried), key=lambda c: seconds(task.dry_step(c)))
    assert finding.timings[0].entry == fastest.entry
    assert finding.timings[0].seconds == pytest.approx(seconds(task.dry_step(fastest)))
    assert search.tiles([finding]) == {task.key: fastest.entry}
    assert finding.usual_seconds == pytest.approx(seconds(task.dry_step(tried[0])))
    assert device.memory == {}
    assert device.bound == []


def test_todays_tile_stays_unless_another_gains_more_than_the_margin():
    def chosen(today_us):
        timings = [search.Timing({"tile": "A"}, 100e-6), search.Timing({"tile": "B"}, today_us * 1e-6)]
        return search.Finding("k", "", 1, {"tile": "A"}, {"tile": "B"}, timings).chosen.entry["tile"]

    assert [chosen(100), chosen(101.9), chosen(102.1)] == ["B", "B", "A"]
    alone = search.Finding("k", "", 1, {}, {"tile": "C"}, [search.Timing({"tile": "A"}, 1.0)])
    assert alone.chosen.entry == {"tile": "A"}
    assert search.tiles([search.Finding("k", "", 1, {}, {"tile": "C"})]) == {}


@pytest.mark.parametrize("place", [5, *later("as the sixth", 0, -1)])
def test_todays_tile_is_timed_as_it_is_launched_today(place):
    task = conv_task("fp16", 1)
    answer = right_bytes(task)
    today = {**task.candidates()[place].entry, "early": 0}
    layer = replace(task.layer, facts=replace(task.layer.facts, tuned={task.key: today}))
    times = {task.dry_step(choice).kernel: 1e-5 + 1e-9 * i for i, choice in enumerate(task.candidates())}
    device = TuneDevice(lambda _: answer, lambda step: times[step.kernel] * (0.999 if step.programmatic else 1.0))
    (finding,) = run(replace(task, layer=layer), device)
    assert finding.timings[0].entry != today
    assert finding.chosen.entry == finding.today == today


def test_todays_tile_is_tried_though_the_estimate_likes_others():
    task = conv_task("fp16", 1)
    last = task.candidates()[-1]
    assert last not in search.shortlist(task, 6)
    entry = {**last.entry, "early": 1 - int(last.programmatic)}
    cut = replace(task.layer, facts=replace(task.layer.facts, tuned={task.key: entry}))
    tuned = replace(task, layer=cut)
    assert tuned.today.entry == entry
    assert search.shortlist(tuned, 6) == [*search.shortlist(task, 6), last]
    assert task.today == task.candidates()[0]


def spoil_one(expected):
    expected[-1, 3, 5, 7] += 0.01 * np.abs(expected).max()


@pytest.mark.parametrize("spoil", [spoil_one, None])
def test_a_wrong_candidate_is_reported_and_not_timed(spoil):
    task = conv_task(batch=2)
    bad = task.dry_step(search.shortlist(task, 6)[2]).kernel
    wrong = right_bytes(task, spoil) if spoil else None  # None: it writes nothing, and the poison stays
    right = right_bytes(task)
    device = TuneDevice(lambda step: wrong if step.kernel == bad else right, pace(task))
    (finding,) = run(task, device)
    ((entry, why),) = finding.wrong
    assert entry == search.shortlist(task, 6)[2].entry
    assert "it is off by" in why
    assert entry not in [timing.entry for timing in finding.timings]


def test_a_candidate_that_changes_its_mind_is_wrong():
    task = conv_task()
    launches = []

    def answer(_):
        launches.append(1)
        data = right_bytes(task)
        data[5] ^= len(launches) > 7
        return data

    (finding,) = run(task, TuneDevice(answer, lambda _: 1e-5), top=1)
    assert finding.timings == []
    assert "other bits" in finding.wrong[0][1]


def test_a_slow_candidate_is_checked_but_not_timed_for_long():
    task = conv_task()
    slow = task.dry_step(search.shortlist(task, 6)[3]).kernel
    answer = right_bytes(task)
    device = TuneDevice(lambda _: answer, lambda step: 1e-2 if step.kernel == slow else 1e-5)
    (finding,) = run(task, device)
    assert sum(step.kernel == slow for step in device.launched) == 3
    assert len({timing.entry["rows"] for timing in finding.timings}) >= 1
    assert search.shortlist(task, 6)[3].entry not in [timing.entry for timing in finding.timings]


def test_a_kernel_that_does_not_compile_is_reported():
    task = conv_task()
    bad = task.dry_step(search.shortlist(task, 6)[1]).kernel
    answer, threads = right_bytes(task), set()

    def compiling(kernel):
        threads.add(threading.get_ident())
        if kernel == bad:
            raise KernelError("it does not compile")

    (finding,) = run(task, TuneDevice(lambda _: answer, pace(task)), compiling=compiling)
    assert "it does not compile" in [why for _, why in finding.wrong]
    assert threading.get_ident() not in threads
    assert finding.timings


def test_time_runs_out_while_something_compiles():
    done = threading.Event()
    try:
        device = TuneDevice(lambda _: None, lambda _: 1e-5)
        assert run(conv_task(), device, compiling=lambda _: done.wait(30), seconds=0.2) == []
    finally:
        done.set()


def test_a_device_beyond_use_ends_the_search():
    task = conv_task()
    device = TuneDevice(lambda _: None, lambda _: 1e-5)

    def broken():
        if device.launched:
            raise KernelError("an illegal memory access")

    device.synchronize = broken
    with pytest.raises(KernelError, match=r"conv_wgmma batch=1 .*'tile'.* broke the device: an illegal memory access"):
        run(task, device)
    assert device.memory == {}
    assert device.bound == []


def test_the_shortlist_has_different_tiles_and_their_kin():
    task = next(task for task in tasks(vgg_graph(Vgg()), H200, ("fp16",), [(1, 3, 224, 224)]) if "=14 " in task.key)
    chosen = search.shortlist(task, 12)
    assert len(chosen) == len(set(chosen)) == 12
    assert chosen[0] == task.candidates()[0]
    shapes = [search._shape(choice.tile) for choice in chosen]
    assert len(set(shapes[:8])) == 8
    assert set(shapes[8:]) & set(shapes[:8])
    assert {type(choice.tile) for choice in chosen} <= {LargeTile, SmallTile}
    few = small_tasks("fp16")[-1]
    assert search.shortlist(few, 1) == list(few.candidates())  # only convolutions have too many
