"""How each kind of number was taken: text for a record."""

from __future__ import annotations

from collections.abc import Mapping

from testbench.pipeline.memory import FLAT


def methods(seconds: float) -> Mapping[str, str]:
    """seconds: of load for the engine alone."""
    return {
        "stages": "each stage alone in the process of the benchmark, the others still, files in the page cache; "
        "seconds of the wall clock, and of all processors together, for so many pictures; a rate is pictures by the "
        "median of the seconds. Reading: the files' bytes. Decoding: the loader's threads, which read as well, into "
        "slots that nobody takes from; `resized` by Pillow there or not; fewer threads get as many fewer pictures; "
        "`by processes`: those that decode many pictures for a GPU in a run, from when their slots are full; `without "
        "a lock`: a process a core, which is no part of a run. Resizing: the kernel on slots "
        "that lie on the device. Uploading: slots from pinned memory. Computing: the engine's stream of "
        "one batch of the pictures "
        f"again and again for {seconds:g} s, bytes in memory to scores. Ranking, writing: scores to answers in order, "
        "answers to a CSV, without forcing it to the disk at the end. What shares a place (processor cores, the "
        "device, the bus, the thread that writes) takes turns there, so their times add up; on a CPU the device is its "
        "cores. Where a GPU decodes: reading into slots, the loader with one thread; decoding on the GPU, files in "
        "pinned memory to planes on the card, the engine still; colours, resizing: both kernels on what lies there",
        "runs": "python -m vgg16gpu -vv infer DIR --output rows.csv in a process of its own, kernels and byte code in "
        "caches (one run before, not counted), before the benchmark's own process uses the device. whole_s: from its "
        "start to its end. rows_per_s: rows behind those of the first batch, by the seconds from that to the end of "
        "the file; so what was decoded while the engine was built, a few hundred pictures at most, counts as well. "
        "stages, rates, timings: what it reports of itself; decode: who decodes JPEG",
        "peers": "torch in processes of their own, one way after the other: its model channels last in the precision "
        "that is named, no TF32, cudnn.benchmark, batches of 128, a warm-up before the loop. DataLoader: Pillow and "
        "torchvision's transforms in one process a core; nvJPEG: torchvision decodes on the GPU, each picture is "
        "resized by itself. pictures_per_s: of the loop, which ends with the five best classes on the host; whole_s: "
        "from the start of the process to its end, without a file of rows; same_best: how many of its best classes are "
        "those of our CSV, of the first decoder",
        "memory": "the most memory of infer and of the processes that decode for it (VmHWM; what they share counts in "
        "each) over a list that names the folder's files again and again; "
        f"names: what reading that list takes at most, which grows. Flat: the rest grows by {FLAT:.0%} of the smallest",
        "verdicts": "share: rows_per_s by the rate of the smallest ceiling, medians both; best: the same of what was "
        "disturbed least; cpu: seconds of all processors for a picture in the stages alone, by those of the whole run, "
        "which others on the machine disturb little; on a CPU, where all stages have the same cores",
    }
