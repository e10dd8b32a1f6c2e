"""VGG16 ONNX inference through hand-written CUDA kernels, on a GPU and, as C++, on a CPU.

    from vgg16gpu import Engine, classify

    with Engine("vgg16.onnx") as engine:
        scores = engine.run(x)  # (N, C, H, W) float32, or (N, H, W, C) uint8

    for answer in classify("photos/", "vgg16.onnx"):
        print(answer.name, answer.top[0].label if answer.top else answer.error)

Importing the package is free: the engine, and numpy with it, come with the first use of `Engine` or a neighbour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgg16gpu.errors import DeviceError, Error, InputError, KernelError, ModelError

if TYPE_CHECKING:
    from vgg16gpu.cluster.pool import EnginePool
    from vgg16gpu.compiler.model import Model
    from vgg16gpu.io.preprocessing import Preprocess
    from vgg16gpu.runtime.answers.classify import Answer, classify, labels
    from vgg16gpu.runtime.calibration import calibrate
    from vgg16gpu.runtime.engine import Engine
    from vgg16gpu.runtime.on_device.results import DeviceArray
    from vgg16gpu.runtime.plans.loss_engine import LossEngine
    from vgg16gpu.runtime.session import Session

    __version__: str

__all__ = [
    "Answer",
    "DeviceArray",
    "DeviceError",
    "Engine",
    "EnginePool",
    "Error",
    "InputError",
    "KernelError",
    "LossEngine",
    "Model",
    "ModelError",
    "Preprocess",
    "Session",
    "__version__",
    "calibrate",
    "classify",
    "labels",
]

_MODULES = {  # of what costs numpy, so that only who needs it pays
    "Answer": "runtime.answers.classify",
    "DeviceArray": "runtime.on_device.results",
    "Engine": "runtime.engine",
    "EnginePool": "cluster.pool",
    "LossEngine": "runtime.plans.loss_engine",
    "Model": "compiler.model",
    "Preprocess": "io.preprocessing",
    "Session": "runtime.session",
    "calibrate": "runtime.calibration",
    "classify": "runtime.answers.classify",
    "labels": "runtime.answers.classify",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        from importlib import import_module  # noqa: PLC0415 - importing the package is free

        return getattr(import_module(f"vgg16gpu.{_MODULES[name]}"), name)
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'vgg16gpu' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    # In a clone that is not installed pyproject.toml lies beside the package; an older installed copy must not answer.
    import tomllib  # noqa: PLC0415 - as above
    from importlib import metadata  # noqa: PLC0415 - as above
    from pathlib import Path  # noqa: PLC0415 - as above

    beside = Path(__file__).parent.parent / "pyproject.toml"
    if beside.is_file():
        project = tomllib.loads(beside.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "vgg16gpu":  # and not that of a project which has copied the package
            return str(project["version"])
    return metadata.version("vgg16gpu")
