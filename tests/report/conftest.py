"""One page of a folder that has everything."""

import pytest

from tests.report.records import write_all
from vgg16gpu.report.folder import find_results
from vgg16gpu.report.page import page


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def full(folder):
    return page(find_results(folder))
