"""Tables and pictures of README and docs are those that the tools make of records and imports."""

import draw_folders
import lab_tables
import pytest
import readme_table


@pytest.mark.parametrize("tool", [draw_folders, lab_tables, readme_table])
def test_the_pages_are_up_to_date(tool):
    assert tool.main(["--check"]) == 0
