"""What stages of one place come to together, and what a whole run has of the smallest ceiling."""

import pytest

from vgg16gpu.bench.pipeline.ceilings import Speed, ceilings, smallest, verdict
from vgg16gpu.bench.pipeline.stage import Place, StageTime, timed


def stage(name, place, *seconds, pictures=100, cpu=(1.0, 2.0, 3.0), **more):
    return StageTime(name, place, pictures, seconds, cpu, **more)


STAGES = (
    stage("reading", Place.FILES, 0.5, 0.4, 0.6),
    stage("decoding", Place.CORES, 2.0, 1.0, 4.0),
    stage("decoding, resized", Place.CORES, 9.0, 9.0, 9.0, counts=False),
    stage("resizing", Place.DEVICE, 1.0, 1.0, 1.0),
    stage("computing", Place.DEVICE, 3.0, 2.0, 5.0, precision="fp16"),
    stage("computing", Place.DEVICE, 30.0, 30.0, 30.0, precision="fp32"),
    stage("ranking", Place.WRITER, 0.25, 0.25, 0.25),
    stage("writing", Place.WRITER, 0.75, 0.5, 1.0),
)


def test_a_rate_is_of_the_median_and_at_best_of_the_least():
    decoding = STAGES[1]
    assert decoding.pictures_per_s == 50
    assert decoding.best_pictures_per_s == 100
    assert decoding.cpu_s_each == 0.01


def test_times_of_one_place_add_up():
    found = {each.place: each for each in ceilings(STAGES, "fp16", "cpu", "cuda")}
    assert found[Place.DEVICE].stages == ("resizing", "computing")
    assert found[Place.DEVICE].pictures_per_s == pytest.approx(100 / (1 + 3))
    assert found[Place.DEVICE].best_pictures_per_s == pytest.approx(100 / (1 + 2))
    assert found[Place.WRITER].pictures_per_s == pytest.approx(100 / (0.25 + 0.75))
    assert found[Place.CORES].stages == ("decoding",)
    assert smallest(list(found.values())).place is Place.DEVICE


def test_what_does_not_count_and_another_precision_are_left_out():
    found = {each.place: each for each in ceilings(STAGES, "fp32", "cpu", "cuda")}
    assert found[Place.DEVICE].pictures_per_s == pytest.approx(100 / 31)
    assert found[Place.CORES].pictures_per_s == 50


def test_the_device_of_a_cpu_is_its_cores():
    found = {each.place: each for each in ceilings(STAGES, "fp16", "cpu", "cpu")}
    assert Place.DEVICE not in found
    assert found[Place.CORES].stages == ("decoding", "resizing", "computing")
    assert found[Place.CORES].pictures_per_s == pytest.approx(100 / 6)
    assert found[Place.CORES].cpu_s_each == pytest.approx(0.03)


def test_a_whole_run_by_its_smallest_ceiling():
    speed = Speed("fp16", "cpu", 7.0, rows_per_s=20.0, best_rows_per_s=25.0, cpu_s_each=0.04)
    on_gpu = verdict(STAGES, speed, "cuda")
    assert (on_gpu.share, on_gpu.best, on_gpu.cpu) == (pytest.approx(0.8), pytest.approx(0.75), None)
    on_cpu = verdict(STAGES, speed, "cpu")
    assert (on_cpu.share, on_cpu.best) == (pytest.approx(20 * 6 / 100), pytest.approx(25 * 4 / 100))
    assert on_cpu.cpu == pytest.approx(0.75)
    assert on_cpu.fields()["ceiling"]["place"] == "cores"
    assert on_cpu.fields()["whole_s"] == 7


def test_without_a_rate_there_is_no_share():
    found = verdict(STAGES, Speed("fp16", "cpu", 7.0, None, None, None), "cpu")
    assert (found.share, found.best, found.cpu) == (None, None, None)


def test_the_record_that_there_is_follows_from_its_stages():
    """pipeline-cpu.json: read as data, its stages give its verdict."""
    import json
    from pathlib import Path

    path = Path(__file__).resolve().parents[3] / "testbench" / "results" / "pipeline-cpu.json"
    record = json.loads(path.read_text())
    rates = ("pictures_per_s", "best_pictures_per_s")
    keep = [{key: value for key, value in each.items() if key not in rates} for each in record["stages"]]
    stages = [StageTime(**{**each, "place": Place(each["place"])}) for each in keep]
    (run,), (said,) = record["runs"], record["verdicts"]
    best = max(run["rows_samples_per_s"])
    speed = Speed(run["precision"], "cpu", run["whole_s"], run["rows_per_s"], best, run["cpu_s_each"])
    found = verdict(stages, speed, record["device"]["kind"])
    assert [found.share, found.best, found.cpu] == pytest.approx([said["share"], said["best"], said["cpu"]])
    assert list(found.ceiling.stages) == said["ceiling"]["stages"]


def test_what_prepares_is_not_timed():
    import time

    samples = timed(2, lambda: time.sleep(0.01), lambda: time.sleep(0.2))
    assert len(samples.wall) == len(samples.cpu) == 2
    assert all(0.01 <= seconds < 0.15 for seconds in samples.wall)
    assert all(seconds < 0.15 for seconds in samples.cpu)


def test_processor_time_is_that_of_all_threads():
    import threading

    def spin():
        threads = [threading.Thread(target=sum, args=(range(2_000_000),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    (cpu,) = timed(1, spin).cpu
    assert cpu > 0.01
