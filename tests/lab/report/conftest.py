"""One page of a folder that has everything."""

from unittest.mock import patch

import pytest

from tests.lab.report.records import without_matplotlib, write_all
from vgg16gpu_lab.report.folder import find_results
from vgg16gpu_lab.report.html import pictures
from vgg16gpu_lab.report.page import page
from vgg16gpu_lab.report.sections import learning


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("results"))


@pytest.fixture
def no_pictures():
    """Nothing is drawn, which takes most of the time of a page."""
    with without_matplotlib():
        yield


@pytest.fixture(scope="session")
def full(folder):
    """Return the page with pictures, which are drawn and not saved; of those that explain kernels the first alone."""
    with (
        patch.object(learning, "lessons", return_value=learning.lessons()[:1]),
        patch.object(pictures, "_svg", return_value=b"<svg/>"),
    ):
        return page(find_results([folder]))
