"""mma.sync: the products of a warp at once, by the tensor cores."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.exercises.bench import Bench, Case, Launch
from vgg16gpu_lab.exercises.exercise import Exercise, Finding, answer, at_least, at_most, normal
from vgg16gpu_lab.exercises.log import Noted

M, N, K = 32, 24, 64
TOLERANCE = 3e-5  # the tensor cores round a float sum in their own way
PRODUCTS = 32 * (M // 16) * (N // 8) * (K // 16)  # calls by threads: 32 for each instruction


def _case(rows: int, columns: int, length: int) -> Case:
    a, b = (normal(seed, lines, length).astype(np.float16) for seed, lines in ((0, rows), (1, columns)))
    launch = Launch("mma_sync", Dim3(columns // 8, rows // 16), Dim3(32), ("y", "a", "b", columns, length // 2))
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    return Case(f"{rows}x{columns}, sums of {length}", {"a": a, "b": b}, (launch,), expected)


def _judge(bench: Bench) -> Iterator[Finding]:
    found, outcomes = answer(bench, map(_case, (M, 16, 48), (N, 8, 40), (K, 16, 32)), TOLERANCE)
    yield found
    log = outcomes[0].log
    look = "Call multiply_16x8x16(sum, fa, fb) once for each 16 numbers (8 words) of k, with all 32 threads."
    yield at_least("instructions, counted by threads", log.count(Noted.PRODUCT), PRODUCTS, look)
    yield at_most("the same, at most", log.count(Noted.PRODUCT), PRODUCTS, look)
    words = (log.count(Noted.READ, "a") + log.count(Noted.READ, "b")) / PRODUCTS
    look = "Four words of a and two of b are all that a thread needs for an instruction; the products are its work."
    yield at_most("words read for an instruction, by a thread", words, 6, look)


EXERCISE = Exercise(
    name="mma-sync",
    title="mma.sync",
    task="16x8 outputs a warp, one product after the other. Let the tensor cores do 2048 products an instruction.",
    hints=(
        "The loop over k goes in steps of 8 words (16 numbers). In each step every thread calls multiply_16x8x16 once.",
        "lab/counted_mma.cuh says who brings what: lane 4g + t brings words t and t + 4 of rows g and g + 8 of a, and "
        "of row g of b. The row of b is g, not 2t: what a thread brings is not what its sums are made of.",
        "fa = {a[m * words + k + t], a[(m + 8) * words + k + t], a[m * words + k + t + 4], ...}, and fb from row "
        "blockIdx.x * 8 + g of b at k + t and k + t + 4.",
    ),
    explanation=(
        "One instruction multiplies 16x16 by 16x8: 2048 products, 64 a thread, for six words that the thread brings. "
        "The threads of a warp share them, which is why all 32 must come to the call (.sync). The layout of the "
        "fragments is NVIDIA's (PTX ISA, mma.m16n8k16). What is left to do is to bring the words by way of shared "
        "memory and ldmatrix: conv_mma.cu. On the CPU the same call is computed by a twin (kernels/cpu/mma.h)."
    ),
    judge=_judge,
    folder=Path(__file__).parent,
)
