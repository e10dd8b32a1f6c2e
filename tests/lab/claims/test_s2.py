"""lab/claims/s2.py: verdicts of the published tables, every claim both ways, and those that are no pairs."""

import pytest

from tests.lab.claims.numbers import (
    ALL,
    CANNOT_TELL,
    DOES_NOT,
    HOLDS,
    check_both,
    check_published,
    check_theirs_as_ours,
    found,
    of_seed,
)
from vgg16gpu_lab.claims.times import Entry, key

PUBLISHED = {
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
}
FALLING = {"stride=1": 6, "stride=2": 3, "stride=3": 2}
RISING = {"stride=1": 1, "stride=2": 2, "stride=3": 3}
SQUARES = {"256": 1, "512": 4, "1024": 16, "2048": 64, "4096": 256}
MADE_UP = {
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
    "S2.18": ({"shared": 2, **SQUARES}, {}),
    "S2.19": ({"basic": 4}, {"basic": 2}),
    "S2.20": ({"direct": 1.5, "im2col_gemm": 1.5}, {"direct": 1.5, "im2col_gemm": 4}),
    "S2.22": (SQUARES, {}),
    "S2.23": ({"stride=1": 4}, {"stride=1": 1.2}),
    "S2.24": ({"cudnn stride=1": 5, "direct stride=1": 4}, {"direct stride=1": 4}),
    "S2.25": ({"block=8": 3.9}, {"block=8": 2}),
    "S2.26": ({"row": 200}, {"row": 50}),
    "S2.27": ({"block=16": 1.1}, {"block=16": 1.5}),
    "S2.30": ({"block=32": 2}, {"block=16": 2}),
}
APART = {"S2.15", "S2.21", "S2.18", "S2.28", "S2.29"}


@pytest.mark.parametrize("number", of_seed("S2"))
def test_verdict_of_the_published_table(number):
    check_published(number, *PUBLISHED.get(number, (CANNOT_TELL, "")))


@pytest.mark.parametrize("number", [number for number in MADE_UP if number not in APART])
def test_both_verdicts_and_none(number):
    check_both(number, *MADE_UP[number])


def test_no_claim_is_forgotten():
    assert set(MADE_UP) | APART == set(of_seed("S2"))
    assert "S2.12" not in ALL  # nobody says it
    check_theirs_as_ours(of_seed("S2"))


def test_an_invalid_launch_is_no_time():
    name = key("S2", "gemm_partition", 4096, "block", "block=64")
    verdict, figure = found("S2.13", {name: Entry(None, "invalid launch", "64x64 is 4096 threads, 1024 are allowed")})
    assert (verdict, figure) == (DOES_NOT, "invalid launch, 1 of 5 sizes: 64x64 is 4096 threads, 1024 are allowed")


def grown(table, parameter, factors, start=1.0):
    """Times that grow by a factor from size to size, by method."""
    return {
        key("S2", table, size, method, parameter): start * factor**step
        for method, factor in factors.items()
        for step, size in enumerate((256, 512, 1024, 2048, 4096))
    }


def test_growth_of_shared_and_basic():
    def both(shared, basic):
        values = {}
        for block in (8, 16, 32):
            values |= grown("gemm_memory", f"block={block}", {"shared": shared, "basic": basic})
        return found("S2.18", values)

    assert both(3.5, 4)[0] is HOLDS
    assert both(3.9, 4) == (
        DOES_NOT,
        "1.03x to 1.03x (weakest: 256 to 512, block=8: 3.9 against 4 times); 0 of 12 as claimed",
    )
    assert both(4, 3.5)[0] is DOES_NOT


def test_growth_of_the_tasks():
    def tasks(**factors):
        return grown("stride", "stride=1", factors) | grown("stride", "stride=2", factors)

    assert found("S2.28", tasks(direct=3, im2col_gemm=4))[0] is HOLDS
    assert found("S2.28", tasks(direct=4, im2col_gemm=4))[0] is DOES_NOT
    assert found("S2.29", tasks(cudnn=2, direct=3, im2col_gemm=4))[0] is HOLDS
    assert found("S2.29", tasks(cudnn=3, direct=2, im2col_gemm=4))[0] is DOES_NOT
    values = tasks(cudnn=2, direct=3, im2col_gemm=4)
    assert "from 256" in found("S2.29", values)[1]
    assert "from 1024" in found("S2.29", values, floors={"S2": 0.5})[1]  # 256 takes two launches


def test_arithmetic_is_the_same_for_both():
    for number in ("S2.15", "S2.21"):
        assert ALL[number].ours == ALL[number].theirs
        assert ALL[number].ours.verdict is DOES_NOT
