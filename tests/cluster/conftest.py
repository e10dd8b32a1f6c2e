"""What tests of pools share: narrow models, and a fault that one engine has from some batch on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.answers.conftest import narrow_model, pictures, wanted  # noqa: F401 - fixtures
from tests.support.narrow_vgg import SCORES
from vgg16gpu import Engine
from vgg16gpu.errors import KernelError
from vgg16gpu.zoo.generate import make_vgg

PATIENCE = 10.0  # seconds


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A narrow VGG11 of 3x48x48 with random weights."""
    path = tmp_path_factory.mktemp("pool") / "narrow.onnx"
    make_vgg(path, variant="vgg11", size=48, width=8, hidden=64, classes=SCORES)
    return path


@pytest.fixture
def break_lane(monkeypatch: pytest.MonkeyPatch) -> Callable[[Engine, int], Callable[[], None]]:
    """Plants a fault in one engine: from the batch of that number on (counted from 0) nothing comes back from it.

    What it returns mends the engine.
    """

    def plant(broken: Engine, after: int) -> Callable[[], None]:
        lane = Engine.lane
        received: list[Any] = []
        failed, mended = threading.Event(), threading.Event()

        @contextmanager
        def faulty(self: Engine, *form: Any) -> Any:
            with lane(self, *form) as given:

                def receive(sent: Any) -> Any:
                    if self is broken and not mended.is_set():
                        received.append(sent)
                        if len(received) > after:
                            failed.set()
                            raise KernelError("an illegal address was met")
                    else:
                        failed.wait(PATIENCE)  # else the others may leave it no batch to fail at
                    return given.receive(sent)

                yield given._replace(receive=receive)

        monkeypatch.setattr(Engine, "lane", faulty)
        return mended.set

    return plant
