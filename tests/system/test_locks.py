"""Locks and signals: an exception of a signal handler leaves no condition and no queue of the package locked.

`with` on a `threading.Condition`, and so an `Event` or a `queue.Queue`, takes its lock in Python code: what a handler
raises there comes out with the lock taken, and whoever wants it next waits for ever. `with` on a lock itself takes it
in C. So conditions here have a lock that has a name, and `with` names the lock.
"""

from __future__ import annotations

import ast
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.pictures.loading.loader import Loader
from vgg16gpu.pictures.slots import BufferPool, ordinary

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("vgg16gpu", "serving/vgg16gpu_serving", "lab/vgg16gpu_lab")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
EVENTS = {  # set by a thread that nobody strikes, or waited for by one that nobody joins for ever
    "vgg16gpu/bench/measure/timing.py",
    "vgg16gpu/cluster/cards/child.py",
    "vgg16gpu/devices/cuda/install/build.py",
}
TRIALS = 40  # with `with` on the condition the lock stayed taken in more than half of them


def conditions(tree: ast.AST) -> Iterator[ast.Call]:
    """Where they are made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "Condition":
            yield node


def held_by_with(tree: ast.AST) -> set[str]:
    """The names of what `with` enters."""
    items = [item.context_expr for node in ast.walk(tree) if isinstance(node, ast.With) for item in node.items]
    return {item.attr for item in items if isinstance(item, ast.Attribute)}


def names_of_conditions(tree: ast.AST) -> set[str]:
    """What conditions are assigned to."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(call is node.value for call in conditions(tree)):
            found |= {target.attr for target in node.targets if isinstance(target, ast.Attribute)}
    return found


@pytest.mark.parametrize("path", [path for path in SOURCES if "Condition(" in path.read_text()], ids=lambda p: p.stem)
def test_with_takes_the_lock_of_a_condition_and_not_the_condition(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert all(call.args for call in conditions(tree))
    names = names_of_conditions(tree)
    assert len(names) == 1
    assert not names & held_by_with(tree)


def test_no_queue_and_no_event_takes_its_lock_in_python_code_where_ctrl_c_ends_the_work() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in SOURCES}
    mentioned = re.compile(r"from queue|queue\.|threading\.Event")  # the others are not parsed, which is slow
    trees = {name: ast.parse(text) for name, text in texts.items() if mentioned.search(text)}
    imported = {
        name.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "queue"
        for name in node.names
    }
    assert imported == {"SimpleQueue", "Empty"}
    used = {
        (name, f"{node.value.id}.{node.attr}")
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("queue", "threading")
    }
    assert {attribute for _, attribute in used if attribute.startswith("queue.")} == {"queue.SimpleQueue"}
    assert {name for name, attribute in used if attribute == "threading.Event"} == EVENTS


def is_free(lock: Any) -> bool:
    """Whether another thread gets it."""
    got: list[bool] = []

    def take() -> None:
        if lock.acquire(timeout=5):
            lock.release()
            got.append(True)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return bool(got)


def answering(loader: Loader) -> None:
    loader.answered(0)


def giving_back(loader: Loader) -> None:
    loader.ring.give_back(loader.ring.take())


def asking(loader: Loader) -> None:
    loader.has_row()


@pytest.mark.parametrize("work", [answering, giving_back, asking])
def test_a_signal_at_any_moment_leaves_the_locks_free(work: Callable[[Loader], None]) -> None:
    chance, before = random.Random(1), signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(TRIALS):
            ring = BufferPool(64, 2)
            ring.pin(ordinary, takes_pictures=False)
            loader = Loader(Listing(()), InputSpec((1,)), ring, 1)
            loader.start()
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.004 * chance.random())
                while True:
                    work(loader)
            assert is_free(loader._lock)
            assert is_free(ring._lock)
            loader.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_stream_closes_wherever_a_signal_strikes() -> None:
    command = [sys.executable, "-m", "tests.support.struck_stream", "150"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
