"""docs/lab.md: its tables are those of the records."""

import lab_tables


def test_the_tables_are_up_to_date():
    assert lab_tables.main(["--check"]) == 0
