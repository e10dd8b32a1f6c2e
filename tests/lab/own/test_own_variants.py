"""lab/own/folder.py and lab/own/template.py: somebody's own kernels, from `lab new` on."""

import pytest

from tests.lab.harness import check, random_problems
from vgg16gpu.errors import InputError
from vgg16gpu_lab.measure.trial import Trial
from vgg16gpu_lab.own.own_variants import own_variants
from vgg16gpu_lab.own.template import write_template
from vgg16gpu_lab.problem import Problem


def test_the_template_is_right(device, own):
    (mine,) = own()
    for problem in random_problems("template", 3):
        check(device, mine, problem)


def test_nothing_is_replaced(tmp_path):
    paths = write_template(tmp_path, "my-kernel")
    assert [path.name for path in paths] == ["my_kernel.cu", "my_kernel.py", "test_my_kernel.py"]
    assert not any("@" in path.read_text().replace("@pytest", "") for path in paths)
    for path in paths[:2]:
        path.unlink()
    with pytest.raises(InputError, match=r"test_my_kernel\.py is there already"):
        write_template(tmp_path, "my-kernel")
    assert not paths[0].exists()


def test_names_that_will_not_do(tmp_path):
    for said, names in (
        ("no name for a variant", ("", "My", "my_kernel", "9x", "a/b", "..", "x-", "a\n")),
        (r"a word of Python or C\+\+", ("class", "double")),
        ("a word of `lab run` or pytest", ("all",)),
        ("the name of a Python module", ("numpy",)),
        ("has 61 characters", ("a" * 61,)),
    ):
        for name in names:
            with pytest.raises(InputError, match=said):
                write_template(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_names_that_are_taken(own, tmp_path):
    with pytest.raises(InputError, match="a variant 'direct-chw' already"):
        write_template(tmp_path, "direct-chw")
    with pytest.raises(InputError, match="'direct-chw' is there already"):
        own(module=(('name="mine"', 'name="direct-chw"'),))


def test_folders_without_variants(tmp_path):
    with pytest.raises(InputError, match="is no folder"):
        own_variants(tmp_path / "missing")
    (tmp_path / "test_x.py").write_text("raise RuntimeError")
    (tmp_path / "_x.py").write_text("raise RuntimeError")
    (tmp_path / "helper.py").write_text("X = 1")
    with pytest.raises(InputError, match="no module with VARIANTS"):
        own_variants(tmp_path)


def test_modules_that_fail(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("a = 1\nb = nonsense\n")
    with pytest.raises(InputError, match=r"x\.py: NameError: .*nonsense.*x\.py:2"):
        own_variants(tmp_path)
    path.write_text("import sys\nsys.exit(7)\n")
    with pytest.raises(InputError, match=r"x\.py: SystemExit: 7"):
        own_variants(tmp_path)
    path.write_text("VARIANTS = ('x',)")
    with pytest.raises(InputError, match="must be a tuple of Variant"):
        own_variants(tmp_path)


def test_what_is_written_beside_the_arrays_is_named(device, own):
    (mine,) = own(("* OW + j] = sum;", "* OW + j - 30] = sum;"))
    with Trial(device, mine, Problem(1, 1, 23, 25, 1, 3, 1, 1)) as trial:
        trial.run()
        assert trial.trespass() == "behind weight"
