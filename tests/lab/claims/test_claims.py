"""lab/claims/s1.py to s5.py: the verdict of every claim by its report's own table, and by made-up numbers both ways."""

from tests.lab.claims.numbers import (
    ALL,
    CANNOT_TELL,
    DOES_NOT,
    HOLDS,
    check_both,
    check_published,
    check_theirs_as_ours,
)
from vgg16gpu_lab.experiments.s1 import NEAR

PUBLISHED = {  # of others no table says anything
    "S1.1": (DOES_NOT, "31: 0.077 against 0.071 ms); 2 of 5 as claimed; 2 too close"),
    "S1.4": (CANNOT_TELL, "direct 127: 0.401 against 0.402 ms); 8 of 10 as claimed; 2 too close"),
    "S1.6": (CANNOT_TELL, "not faster up to 511: 0.39x"),
    "S1.12": (DOES_NOT, "cuDNN is faster at 4 of 5 sizes (511: 0.99 against 1.16 ms)"),
    "S1.14": (DOES_NOT, "0.167 ms at 31, 1.81 ms at 511: 10.9x"),
    "S2.1": (DOES_NOT, "basic 2048, 16 and 32: 32.4 against 18.8 ms"),
    "S2.2": (HOLDS, "6 of 6 as claimed; 32 against 16: 0.662x"),
    "S2.3": (DOES_NOT, "256 stride=1, cudnn and direct: 0.179 against 0.17 ms"),
    "S2.4": (HOLDS, "15 of 15"),
    "S2.5": (DOES_NOT, "8 of 10"),
    "S2.6": (HOLDS, "1.47x to 2.89x"),
    "S2.7": (HOLDS, "1.51x to 3.9x"),
    "S2.8": (HOLDS, "1.22x to 3.43x"),
    "S2.9": (DOES_NOT, "0 of 15"),
    "S2.13": (DOES_NOT, "221 % to 28326 % of the roofline"),
    "S2.14": (HOLDS, "1x to 1x"),
    "S2.15": (DOES_NOT, "65,536 blocks of 256 threads: 16,777,216 threads"),
    "S2.16": (CANNOT_TELL, "5 too close"),
    "S2.17": (DOES_NOT, "0.858x to 0.952x"),
    "S2.18": (DOES_NOT, "0.992x to 1.04x (weakest: 256 to 512, block=8: 3.85 against 3.82 times); 0 of 12"),
    "S2.19": (HOLDS, "3.25x to 3.43x"),
    "S2.20": (DOES_NOT, "21% less than direct, 68% less than im2col_gemm"),
    "S2.21": (DOES_NOT, "each 9 times"),
    "S2.22": (HOLDS, "3.62x to 3.99x"),
    "S2.23": (HOLDS, "5 of 5"),
    "S2.24": (HOLDS, "5 of 5"),
    "S2.25": (HOLDS, "3.78x to 3.94x"),
    "S2.26": (HOLDS, "330x to 637x"),
    "S2.27": (DOES_NOT, "0 of 10"),
    "S2.28": (DOES_NOT, "15.8 against 15.9 times"),
    "S2.29": (HOLDS, "2 of 2"),
    "S2.30": (DOES_NOT, "4 of 6"),
    "S3.1": (HOLDS, "1.31x (forward: 1430 against 1875 ms)"),
    "S3.2": (DOES_NOT, "6.55x (forward: 286 against 1875 ms)"),
    "S3.3": (HOLDS, "5x to 24.6x"),
    "S3.4": (DOES_NOT, "conv1: 40.7 against 36.4 ms"),
    "S3.5": (HOLDS, "1.08x to 1.09x"),
    "S3.6": (HOLDS, "77%: 220 of 286 ms"),
    "S3.7": (CANNOT_TELL, "not done"),
    "S3.11": (DOES_NOT, "1.31x (forward: 1430 against 1875 ms)"),
    "S3.12": (HOLDS, "89% of sequential_cpu, 86% of parallel_im2col"),
    "S3.13": (DOES_NOT, "0 of 2"),
    "S3.14": (CANNOT_TELL, "292 against 286 ms"),
    "S3.15": (CANNOT_TELL, "287 against 292 ms"),
    "S4.1": (CANNOT_TELL, "1.2x is said"),
    "S4.6": (CANNOT_TELL, "refilled without a barrier (3.3)"),
    "S4.8": (DOES_NOT, "one filter for all input channels (3.1.1)"),
    "S4.9": (HOLDS, "16 for 4 outputs instead of 36, 2.25x"),
    "S5.1": (HOLDS, "9.35x"),
    "S5.2": (HOLDS, "17.4x"),
    "S5.3": (HOLDS, "5.24x (229 against 1198 ms)"),
    "S5.8": (DOES_NOT, "version_a, 1 and 5: 22364 against 20803 ms"),
    "S5.10": (HOLDS, "244 -> 122 -> 61 -> 30 -> 15 -> 7"),
    "S5.11": (HOLDS, "9.35x"),
    "S5.12": (HOLDS, "162x"),
}
SLOW = dict.fromkeys((str(size) for size in NEAR[1:]), 100.0)
FALLING = {"stride=1": 6, "stride=2": 3, "stride=3": 2}
RISING = {"stride=1": 1, "stride=2": 2, "stride=3": 3}
SQUARES = {"256": 1, "512": 4, "1024": 16, "2048": 64, "4096": 256}
WARPS = {"block=8x8": 2, "block=16x16": 2}
CAUSES = [
    f"{place} {add} {grid}" for place in ("host", "device") for add in ("serial", "tree") for grid in ("1d", "2d")
]
MADE_UP = {  # numbers that a claim holds for, and such that it does not; 1 ms elsewhere
    "S1.1": ({"im2col_gemm_only": 1, "direct": 2}, {"im2col_gemm_only": 2, "direct": 1}),
    "S1.2": ({"im2col_gemm": 1, "direct": 2}, {"im2col_gemm": 2, "direct": 1}),
    "S1.3": ({}, {"im2col_gemm": 2}),
    "S1.4": ({"cudnn": 2}, {"im2col_gemm_only": 2}),
    "S1.5": ({"direct": 6.5}, {"direct": 2}),
    "S1.8": ({"direct_coalesced": 2}, {"shared_memory": 2}),
    "S1.9": ({"direct_coalesced": 2}, {"several_outputs": 2}),
    "S1.10": ({}, {"direct_rows": 2}),
    "S1.11": ({}, {"direct_planes": 2}),
    "S1.12": ({}, {"cudnn_three": 3}),
    "S1.15": (SLOW, {}),
    "S2.1": ({"block=8": 2, "block=32": 2}, {"block=16": 2}),
    "S2.2": ({"block=8": 2}, {"block=32": 2}),
    "S2.3": ({"direct": 2, "im2col_gemm": 3}, {"direct": 0.5}),
    "S2.4": ({"im2col_gemm": 2}, {"direct": 2}),
    "S2.5": ({}, RISING),
    "S2.6": (FALLING, RISING),
    "S2.7": (FALLING, RISING),
    "S2.8": ({"basic": 2}, {"shared": 2}),
    "S2.9": ({"registers": 2}, {}),
    "S2.10": ({"shared": 2}, {"register_tile": 2}),
    "S2.11": ({"shared": 2}, {"register_tile": 2}),
    "S2.13": ({"block=32": 2}, {"block=64": 2}),
    "S2.14": ({}, {"block=64": 2}),
    "S2.16": ({"shared": 1.1}, {"registers": 1.1}),
    "S2.17": ({"column": 2}, {"block": 2}),
    "S2.19": ({"basic": 4}, {"basic": 2}),
    "S2.20": ({"direct": 1.5, "im2col_gemm": 1.5}, {"direct": 1.5, "im2col_gemm": 4}),
    "S2.22": (SQUARES, {}),
    "S2.23": ({"stride=1": 4}, {"stride=1": 1.2}),
    "S2.24": ({"cudnn stride=1": 5, "direct stride=1": 4}, {"direct stride=1": 4}),
    "S2.25": ({"block=8": 3.9}, {"block=8": 2}),
    "S2.26": ({"row": 200}, {"row": 50}),
    "S2.27": ({"block=16": 1.1}, {"block=16": 1.5}),
    "S2.30": ({"block=32": 2}, {"block=16": 2}),
    "S3.1": ({"sequential_cpu": 2}, {"parallel_im2col": 2}),
    "S3.2": ({"sequential_cpu": 2}, {"sequential_cpu": 7}),
    "S3.3": ({"parallel_im2col": 2}, {"direct_parallel": 2}),
    "S3.4": ({"direct_parallel": 2}, {"tiled_shared": 2}),
    "S3.5": ({"tiled_shared": 2}, {"constant_weights": 2}),
    "S3.6": ({"forward": 10}, {"forward": 2.5}),
    "S3.9": ({}, {"128": 200}),
    "S3.11": ({"sequential_cpu": 2}, {"sequential_cpu": 7}),
    "S3.12": ({"forward": 3}, {"forward": 5}),
    "S3.13": ({}, {"tiled_shared": 2}),
    "S3.14": ({"direct_parallel": 2}, {"tiled_shared": 2}),
    "S3.15": ({"tiled_shared": 2}, {"constant_weights": 2}),
    "S4.1": ({"cudnn": 1.2}, {"cudnn": 0.5}),
    "S4.5": ({"halo_edge": 2}, {"halo_even": 2}),
    "S4.6": ({"halo_channels": 2}, {"halo_prefetch": 2}),
    "S4.7": ({"halo_float4": 2}, {"halo_channels": 2}),
    "S4.10": ({"halo_edge": 2}, {"halo_even": 2}),
    "S4.11": ({"block=4x8": 1.5}, {}),
    "S4.12": (WARPS, {"block=4x8": 2}),
    "S4.13": ({"halo_oc_outside": 2}, {"halo_channels": 2}),
    "S4.14": ({"halo_even": 2}, {"halo_float4": 2}),
    "S4.16": ({}, {"simple": 2}),
    "S4.17": ({"winograd": 0.5}, {"winograd": 2}),
    "S5.1": ({"cpu": 2}, {"cpu": 0.5}),
    "S5.2": ({"A": 2, "version_a": 2}, {"B": 2, "version_b": 2}),
    "S5.3": ({"version_b": 5}, {"version_b": 2}),
    "S5.4": ({name: 2 for name in CAUSES if "host" in name}, {"device tree 2d": 2}),
    "S5.5": ({name: 2 for name in CAUSES if "serial" in name}, {"host tree 1d": 2}),
    "S5.6": ({name: 2 for name in CAUSES if "1d" in name}, {"host serial 2d": 2}),
    "S5.7": ({"onnxruntime_cpu": 2}, {"onnxruntime_cpu": 0.5}),
    "S5.8": ({}, {"iterations=1": 2}),
    "S5.11": ({"cpu": 9}, {"cpu": 7}),
    "S5.12": ({"cpu": 150}, {"cpu": 20}),
    "S5.14": ({"conv1_1": 1}, {"conv1_1": 0.01}),
}
TESTED_APART = {"S1.6", "S1.7", "S1.13", "S1.14", "S2.15", "S2.18", "S2.21", "S2.28", "S2.29", "S3.7", "S3.8", "S3.10"}
TESTED_APART |= {"S4.2", "S4.3", "S4.8", "S4.9", "S4.15", "S5.9", "S5.10", "S5.13"}  # in test_claims_apart.py


def test_verdict_of_the_published_table():
    for number in ALL:
        check_published(number, *PUBLISHED.get(number, (CANNOT_TELL, "")))
    check_theirs_as_ours(ALL)
    for number in ("S2.15", "S2.21", "S4.9"):  # arithmetic, which is the same for both
        assert ALL[number].ours == ALL[number].theirs


def test_both_verdicts_and_none():
    assert {*MADE_UP} | TESTED_APART == {*ALL}
    for number, (right, wrong) in MADE_UP.items():
        check_both(number, right, wrong)
