"""What a newcomer does beside a GPU: clone, `make demo` and its two answers, `make test`; packages from a folder."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from testbench.recording.recipes import Settings
from testbench.recording.steps import PYTHON, ROOT, Ended, Recipe, Step
from vgg16gpu.bench.records.record import write

CLONE, DEMO, ENVIRONMENT, TESTS = "clone", "demo", "environment", "all-tests"  # the steps
WHAT: Final = (
    "git clone and make demo to its end, nothing made before: environment, beside a GPU PyCUDA compiled on all cores, "
    "kernels compiled, a VGG16 made, two answers; then, where it is told of, make test: each test that a machine can "
    "run. Packages came from a folder (PIP_NO_INDEX, PIP_FIND_LINKS) in place of an index; all else as for a newcomer. "
    "`log`: everything that make demo printed."
)
WHERE: Final = (
    "import json; from vgg16gpu.bench.measure.environment import environment; "
    "from vgg16gpu.devices import open_device; print(json.dumps(environment(open_device('auto')[0])))"
)


def first_command(settings: Settings, packages: Path | None) -> Recipe:
    """The commands, in a folder and a home of their own; an older one of both is removed before they run."""
    home = settings.work / "newcomer"
    clone, tests, where = home / "clone", home / "tests.json", home / "environment.json"
    environ: dict[str, str | None] = {"HOME": str(home), "PYTHONPATH": None, "VGG16GPU_CACHE": None}
    environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages or "PACKAGES"), "XDG_CACHE_HOME": None}
    python, own = f"PYTHON={PYTHON}", str(clone / ".venv" / "bin" / "python")
    record = f"PYTEST_ARGS=--record {tests}"
    steps = [
        Step(CLONE, ("git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)), 2, cwd=home),
        Step(DEMO, ("make", "demo", python), 45, cwd=clone, environ=environ),
        Step(ENVIRONMENT, (own, "-c", WHERE), 3, (where,), where, clone, environ),
        Step(TESTS, ("make", "test", python, record), 300, (tests,), cwd=clone, environ=environ),
    ]
    return Recipe(steps, lambda ended: _finish(settings, where, tests, ended))


def clear(settings: Settings) -> None:
    """Nothing was made before."""
    home = settings.work / "newcomer"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)


def _finish(settings: Settings, where: Path, tests: Path, ended: Mapping[str, Ended]) -> Sequence[Path]:
    """The record, if the demo came to its end; what the tests said is in it if they ran."""
    if not all(name in ended and ended[name].is_well for name in (CLONE, DEMO, ENVIRONMENT)):
        return ()
    ran = TESTS in ended and ended[TESTS].seconds > 0
    content = record(
        {name: each.seconds for name, each in ended.items()},
        {name: each.log.read_text(errors="replace") for name, each in ended.items() if each.log},
        json.loads(where.read_bytes()),
        json.loads(tests.read_bytes()) if ran and tests.is_file() else None,
    )
    path = settings.record("first-command-CARD")
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, content)
    return (path,)


def record(
    seconds: Mapping[str, float],
    logs: Mapping[str, str],
    environment: Mapping[str, Any],
    tests: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The record from what each step took and printed."""
    built = re.search(r"PyCUDA is built: (\d+) s", logs[DEMO])
    content: dict[str, Any] = {
        "what": WHAT,
        "seconds_from_clone_to_the_end": round(seconds[CLONE] + seconds[DEMO], 1),
        "seconds_of_make_demo": round(seconds[DEMO], 1),
        "seconds_of_pycuda": int(built[1]) if built else None,
    }
    if tests:
        content["seconds_of_make_test"] = round(seconds[TESTS])
        content["tests"] = tests["tests"]
        content["failed"] = re.findall(r"^(?:FAILED|ERROR) (\S+)", logs[TESTS], re.MULTILINE)
        content["slowest_seconds"] = tests["slowest_seconds"]
    return {**content, "environment": environment, "log": logs[DEMO].splitlines()}
