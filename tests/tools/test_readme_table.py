"""The figures of the README and of docs/performance.md are those of the recorded results."""

import readme_table


def test_the_pages_are_up_to_date():
    assert readme_table.main(["--check"]) == 0
