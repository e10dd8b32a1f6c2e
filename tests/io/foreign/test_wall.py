"""The wall: what others wrote is read in vgg16gpu/io/foreign alone, by the sources of all three packages.

What stands elsewhere is a reader of what this package wrote a moment ago, or ships: each with its reason. A new reader
belongs into io/foreign; if it is one of these, its line says why.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("vgg16gpu", "serving/vgg16gpu_serving", "lab/vgg16gpu_lab")
WALL = ROOT / "vgg16gpu" / "io" / "foreign"

JSON, ARRAYS, PICTURES = "json", "arrays", "pictures"
READERS = {
    "json.loads": JSON,
    "json.load": JSON,
    "json.JSONDecoder": JSON,
    "json.decoder.JSONDecoder": JSON,
    "numpy.load": ARRAYS,
    "numpy.loadtxt": ARRAYS,
    "numpy.genfromtxt": ARRAYS,
    "numpy.fromfile": ARRAYS,
    "numpy.memmap": ARRAYS,
    "numpy.lib.format.open_memmap": ARRAYS,
    "numpy.lib.format.read_array": ARRAYS,
    "zipfile.ZipFile": ARRAYS,
    "pickle.load": ARRAYS,
    "pickle.loads": ARRAYS,
    "PIL.Image.open": PICTURES,
    "PIL.ImageFile.Parser": PICTURES,
}
LAST = sorted({name.rpartition(".")[2] for name in READERS} - {"open"})
MENTIONED = re.compile(rf"\b({'|'.join(LAST)}|Image)\b|ImagePlugin")  # the others are not parsed, which is slow
PLUGIN = "ImagePlugin"  # Pillow's readers of single kinds

# What reads there, and why nobody else has written it.
OWN = {
    "vgg16gpu/checks/references.py": "scores that the package ships",
    "vgg16gpu/checks/doctor.py": "the answer of a process that it starts",
    "vgg16gpu/devices/cuda/install/wheel.py": "a wheel that it has built, or had when it was built",
    "vgg16gpu/devices/cuda/nvjpeg.py": "a picture that it has just made",
    "vgg16gpu/devices/stages.py": "the log of a process that the benchmark starts",
    "vgg16gpu/io/results/record.py": "its own record, to compare it with one that was read",
    "vgg16gpu/io/results/whole_results.py": "an archive that it writes",
    "lab/vgg16gpu_lab/exercises/judge.py": "the task and the answer of a process that it starts",
    "lab/vgg16gpu_lab/lenet/data.py": "data that the package ships",
    "lab/vgg16gpu_lab/measure/dry_run/dry_run.py": "the answers of a process that it starts",
    "lab/vgg16gpu_lab/measure/dry_run/process.py": "the task that its parent gives it",
    "lab/vgg16gpu_lab/measure/profile.py": "what a process that it starts has written",
    "lab/vgg16gpu_lab/measure/profile_target.py": "the task that its parent gives it",
    "vgg16gpu/pytorch/lpips.py": "weights that the package ships",
    "vgg16gpu/pictures/loading/job.py": "the job that a parent gives its process, and the lines that this tells",
    "vgg16gpu/zoo/digits.py": "data that the package ships",
}


def sources() -> list[Path]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path for path in found if WALL not in path.parents)


def imported(tree: ast.AST) -> dict[str, str]:
    """The full name of each name that a module imports."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.AST) -> list[str]:
    """The parts of a dotted name; none of what is no such name."""
    if isinstance(node, ast.Attribute):
        return [*before, node.attr] if (before := _dotted(node.value)) else []
    return [node.id] if isinstance(node, ast.Name) else []


def used(source: str) -> Iterator[tuple[str, int]]:
    """Every dotted name that a module uses, in full, and its line; names of Pillow's plugins in texts, too."""
    tree = ast.parse(source)
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and (dotted := _dotted(node)):
            first, *rest = dotted
            yield ".".join((names.get(first, first), *rest)), node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(PLUGIN):
            yield PLUGIN, node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def readers(source: str) -> list[tuple[str, int]]:
    """The uses of READERS and of Pillow's plugins."""
    if not MENTIONED.search(source):
        return []
    return [(name, line) for name, line in used(source) if name in READERS or PLUGIN in name]


def test_readers_stand_in_the_wall_alone() -> None:
    found = {}
    for path in sources():
        where = str(path.relative_to(ROOT))
        if where not in OWN and (uses := readers(path.read_text(encoding="utf-8"))):
            found[where] = uses
    assert found == {}, "read it by vgg16gpu/io/foreign, or say in OWN why nobody else has written it"
