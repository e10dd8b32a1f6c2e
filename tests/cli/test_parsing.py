"""What is written behind an option, as a value."""

from __future__ import annotations

import os
from typing import Any

import click
import pytest

from tests.cli.test_written import commands
from vgg16gpu.cli.common.parsing import Real, Whole, parse_cores, parse_counts, parse_shard, parse_size

HERE: Any = None  # the context and the parameter, which no callback looks at


def test_cores() -> None:
    here = sorted(os.sched_getaffinity(0))
    assert parse_cores(HERE, HERE, None) == ()
    assert parse_cores(HERE, HERE, ",".join(map(str, reversed(here)))) == tuple(here)
    assert parse_cores(HERE, HERE, f"{here[0]}-{here[0]}") == (here[0],)
    assert sorted(os.sched_getaffinity(0)) == here


def test_what_is_no_core() -> None:
    says = {
        "9999": "this process may not use core 9999; nproc says how many there are",
        f"{max(os.sched_getaffinity(0))}-9998": "this process may not use core ",
        "2-1": "'2-1' has no core in it: write 8-15 or 4,5",
    } | {value: f"'{value}' is no list of cores: write 8-15 or 4,5" for value in ("", "-1", "1-", "1,x", "0-99999")}
    for value, words in says.items():
        with pytest.raises(click.BadParameter) as refused:
            parse_cores(HERE, HERE, value)
        assert refused.value.message.startswith(words)


def test_what_is_no_number() -> None:
    """NaN above all, which click takes to be in every range: a tolerance of NaN fails or passes everything."""
    assert Whole(1).convert("007", None, None) == 7
    assert Real(0).convert("2.5e-1", None, None) == 0.25
    for value in ("", "nan", "9" * 5000, "1_0", "\u0663", " 5", "1.5", "2147483648", "0x10"):
        with pytest.raises(click.BadParameter, match=r"is not a whole number in digits, 2,147,483,647 at most"):
            Whole(1).convert(value, None, None)
    for value in ("", "nan", "inf", "1e400", "1_0", "\u0663", "1e10", "0x10"):
        with pytest.raises(click.BadParameter, match=r"is not a number in decimals, 1,000,000,000 at most"):
            Real(0).convert(value, None, None)


def test_numbers_beyond_their_range() -> None:
    for kind, value in ((Whole(1), "0"), (Whole(0), "-1"), (Real(0), "-0.5"), (Real(0, 1), "1.5")):
        with pytest.raises(click.BadParameter, match="is not in the range"):
            kind.convert(value, None, None)


def test_long_digits_in_lists() -> None:
    for parse, value in ((parse_counts, "1,{}"), (parse_size, "{}x1"), (parse_shard, "0/{}"), (parse_shard, "{}/2")):
        with pytest.raises(click.BadParameter):
            parse(HERE, HERE, value.format("9" * 5000))  # type: ignore[operator]


def test_each_option_of_a_number_has_a_type_of_ours() -> None:
    """A new option without it would take NaN, and numbers of any size."""
    numbers = (click.IntRange, click.FloatRange, type(click.INT), type(click.FLOAT))
    for words, command in commands():
        for option in command.params:
            is_counter = isinstance(option, click.Option) and option.count
            if isinstance(option.type, numbers) and not is_counter:
                assert isinstance(option.type, Whole | Real), (words, option.name)
