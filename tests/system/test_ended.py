"""support/ended.py: a command that hangs fails its test with where its threads are."""

from __future__ import annotations

import pytest

from tests.support.ended import begun, ended


def test_what_ends_says_what_it_wrote() -> None:
    assert ended(begun("-c", "import sys; print('out'); sys.stderr.write('err')")) == ("out\n", "err")


def test_what_hangs_says_where() -> None:
    code = "import time\ndef waits_for_ever():\n    print('there', flush=True)\n    time.sleep(100)\nwaits_for_ever()\n"
    child = begun("-c", code)
    assert child.stdout is not None
    assert child.stdout.readline() == "there\n"
    with pytest.raises(pytest.fail.Exception, match=r"was not over after 0\.1 s:\n(.*\n)*.* in waits_for_ever"):
        ended(child, 0.1)
    assert child.returncode < 0
