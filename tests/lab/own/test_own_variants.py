"""lab/own/folder.py and lab/own/template.py: somebody's own kernels, from `lab new` on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.harness import check, problem_id, random_problems
from vgg16gpu.errors import InputError
from vgg16gpu_lab.measure.trial import Trial
from vgg16gpu_lab.own import template
from vgg16gpu_lab.own.own_variants import own_variants
from vgg16gpu_lab.own.template import write_template
from vgg16gpu_lab.problem import Problem


@pytest.mark.parametrize("problem", random_problems("template", 3), ids=problem_id)
def test_the_template_is_right(device, own, problem):
    (mine,) = own()
    check(device, mine, problem)


@pytest.mark.slow(reason="a pytest of its own; test_the_template_is_right checks the kernel as that test does")
def test_the_test_that_is_written_runs(own, tmp_path):
    own()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "lab")]
    environment = os.environ | {"PYTHONPATH": str(Path(template.__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_nothing_is_replaced(tmp_path):
    paths = write_template(tmp_path, "my-kernel")
    assert [path.name for path in paths] == ["my_kernel.cu", "my_kernel.py", "test_my_kernel.py"]
    assert not any("@" in path.read_text().replace("@pytest", "") for path in paths)
    for path in paths[:2]:
        path.unlink()
    with pytest.raises(InputError, match=r"test_my_kernel\.py is there already"):
        write_template(tmp_path, "my-kernel")
    assert not paths[0].exists()


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("no name for a variant", ("", "My", "my_kernel", "9x", "a/b", "..", "x-", "a\n")),
        (r"a word of Python or C\+\+", ("class", "double")),
        ("a word of `lab run` or pytest", ("all",)),
        ("the name of a Python module", ("numpy",)),
        ("has 61 characters", ("a" * 61,)),
    ],
)
def test_names_that_will_not_do(tmp_path, said, names):
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


@pytest.mark.parametrize(("index", "said"), [("+ 1", "behind y"), ("- 30", "behind weight")])
def test_what_is_written_beside_the_arrays_is_named(device, own, index, said):
    (mine,) = own(("* OW + j] = sum;", f"* OW + j {index}] = sum;"))
    with Trial(device, mine, Problem(1, 1, 23, 25, 1, 3, 1, 1)) as trial:
        trial.run()
        assert trial.trespass() == said
