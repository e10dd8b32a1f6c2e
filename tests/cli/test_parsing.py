"""What is written behind an option, as a value."""

from __future__ import annotations

import os
from typing import Any

import click
import pytest

from vgg16gpu.cli.common.parsing import parse_cores

HERE: Any = None  # the context and the parameter, which no callback looks at


def test_cores() -> None:
    here = sorted(os.sched_getaffinity(0))
    assert parse_cores(HERE, HERE, None) == ()
    assert parse_cores(HERE, HERE, ",".join(map(str, reversed(here)))) == tuple(here)
    assert parse_cores(HERE, HERE, f"{here[0]}-{here[0]}") == (here[0],)
    assert sorted(os.sched_getaffinity(0)) == here


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("0-9998", "this process may not use core "),
        ("9999", "this process may not use core 9999; nproc says how many there are"),
        ("2-1", "'2-1' has no core in it: write 8-15 or 4,5"),
        *((value, f"'{value}' is no list of cores: write 8-15 or 4,5") for value in ("", "-1", "1-", "1,x", "0-99999")),
    ],
)
def test_what_is_no_core(value: str, says: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        parse_cores(HERE, HERE, value)
    assert refused.value.message.startswith(says)
