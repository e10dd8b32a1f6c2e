"""Which VGG a state dict is of, by its names and shapes alone, and its weights in the order of the graph.

Names are torchvision's (features.0.weight, classifier.6.bias), timm's (pre_logits.fc1 and pre_logits.fc2, which are
convolutions, head.fc), or those of `features` alone (0.weight). What wrappers put before them is left out:
"module." of DataParallel, "_orig_mod." of torch.compile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from vgg16gpu.compiler.vgg.architecture import CONVOLUTIONS, VARIANTS, Vgg
from vgg16gpu.compiler.vgg.tensors import Floats, floats_of, is_tensor
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shown import printable, shown

ACCEPTED: Final = (
    f"accepted: torchvision's or timm's {', '.join(CONVOLUTIONS)}, with batch normalisation or without, whole or "
    "`.features` alone; for other nets write ONNX with torch.onnx.export"
)

_MOST_LISTED: Final = 3
_WRAPPERS: Final = re.compile(r"(?:^|(?<=\.))(?:module|_orig_mod)\.")
_FEATURE: Final = re.compile(r"\d{1,6}\.\w+", re.ASCII)
_TIMM: Final = (("pre_logits.fc1", "classifier.0"), ("pre_logits.fc2", "classifier.3"), ("head.fc", "classifier.6"))
_COUNTER: Final = ".num_batches_tracked"
_NESTED: Final = ("state_dict", "model_state_dict")  # where checkpoints of a training have it


@dataclass(frozen=True, eq=False)
class Weights:
    """A net, and its tensors by the names of its graph."""

    net: Vgg
    arrays: Mapping[str, Floats]


def check_arch(arch: str | None) -> None:
    """Raise ModelError for a name that is none of `VARIANTS`."""
    if arch is not None and arch not in VARIANTS:
        raise ModelError(f"arch is {shown(arch)}; choose one of {', '.join(VARIANTS)}")


def read_weights(state: Mapping[Any, Any], arch: str | None = None, depth: int | None = None) -> Weights:
    """Return the net that a state dict is of, and its weights as float32.

    arch: one of `VARIANTS`; None: the one whose names are there. depth: how many layers of `features` are meant, of a
    net without classifier; None: all. Raises ModelError, which lists what is missing, left over, or of another shape.
    """
    check_arch(arch)
    tensors = _renamed(_flat(state))
    shapes = {name: _shape(name, value) for name, value in tensors.items()}
    known = set(shapes)
    if arch is None:
        if not {"features.0.weight"} & known:
            raise ModelError(f"these are not the weights of a VGG: found {_listed(known)}; {ACCEPTED}")
        arch = min(VARIANTS, key=lambda name: len(_feature_names(name, depth) ^ _only_features(known)))
    net = _net(arch, shapes, depth)
    expected = {name: shape for layer in net.layers for name, shape in layer.parameters}
    _compare(arch, expected, shapes)
    return Weights(net, {name: floats_of(name, tensors[name]).reshape(shape) for name, shape in expected.items()})


def _flat(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return the mapping that has the tensors: the one inside of a checkpoint, else itself."""
    if not any(is_tensor(value) for value in state.values()):
        for key in _NESTED:
            if isinstance(inner := state.get(key), Mapping):
                return inner
    return state


def _renamed(state: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the tensors under torchvision's names, without counters of batches."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if not isinstance(key, str):
            raise ModelError(f"the state dict has the key {shown(key)}; its keys are the names of tensors")
        name = _WRAPPERS.sub("", key)
        if name.endswith(_COUNTER) or not is_tensor(value):
            continue
        for theirs, ours in _TIMM:
            if name.startswith(f"{theirs}."):
                name = f"{ours}{name.removeprefix(theirs)}"
        if name in found:
            raise ModelError(f"the state dict has '{printable(name)}' twice, with and without a prefix; give one net")
        found[name] = value
    is_features = bool(found) and all(_FEATURE.fullmatch(name) for name in found)
    return {f"features.{name}": value for name, value in found.items()} if is_features else found


def _shape(name: str, value: Any) -> tuple[int, ...]:
    """Return a tensor's shape; that of timm's convolutions as the fully connected layer that they are."""
    try:
        shape = tuple(value.shape)
    except RuntimeError as error:  # of a nested tensor
        raise ModelError(f"tensor '{printable(name)}' has no shape; {ACCEPTED}") from error
    if name in ("classifier.0.weight", "classifier.3.weight") and len(shape) == 4:
        return shape[0], shape[1] * shape[2] * shape[3]
    return shape


def _net(arch: str, shapes: Mapping[str, tuple[int, ...]], depth: int | None) -> Vgg:
    """Return the net of a name with the widths that are there."""
    width = shapes.get("features.0.weight", (64,))[:1] or (64,)
    has_classifier = depth is None and any(name.startswith("classifier.") for name in shapes)
    if not has_classifier:
        return Vgg.named(arch, width=width[0], depth=depth or len(Vgg.named(arch).convolutional))
    hidden, classes = (
        (shapes.get(f"classifier.{index}.weight") or (usual,))[0] for index, usual in ((0, 4096), (6, 1000))
    )
    return Vgg.named(arch, width=width[0], hidden=hidden, classes=classes)


@cache
def _feature_names(arch: str, depth: int | None) -> frozenset[str]:
    layers = Vgg.named(arch, depth=depth).convolutional
    return frozenset(name for layer in layers for name, _ in layer.parameters)


def _only_features(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith("features.")}


def _compare(arch: str, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ModelError for names and shapes that differ."""
    missing = [name for name in expected if name not in found]
    surplus = [name for name in found if name not in expected]
    misshaped = [
        f"{name} {found[name]}, expected {shape}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    kinds = (("missing", missing), ("not known", surplus), ("of another shape", misshaped))
    if faults := [f"{what}: {_listed(names)}" for what, names in kinds if names]:
        raise ModelError(f"these are not the weights of {arch}: {'; '.join(faults)}; {ACCEPTED}")


def _listed(names: Iterable[str]) -> str:
    """Return the first few of the names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"{', '.join(printable(name)[:200] for name in names[:_MOST_LISTED]) or 'no tensors'}{more}"
