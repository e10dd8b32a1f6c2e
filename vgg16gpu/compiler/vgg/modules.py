"""Whether a torch module computes what our VGG does: its class and its layers are looked at, not only its weights.

A state dict would not tell: with another pool, activation or padding in `features` it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vgg16gpu.compiler.vgg.architecture import EPSILON, VARIANTS, Vgg, VggLayer
from vgg16gpu.compiler.vgg.forms import loaded_torch
from vgg16gpu.compiler.vgg.state_dict import ACCEPTED, check_arch
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shown import printable

_WRAPPED: Final = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
_VGG: Final = ("torchvision.models.vgg", "VGG")
_TIMMS: Final = "timm.models.vgg.VGG"
_SIDE: Final = 7  # of the maps behind the adaptive pool
_CLASSIFIER: Final = (("Linear",), ("ReLU",), ("Dropout", "Identity")) * 2 + (("Linear",),)


@dataclass(frozen=True, eq=False)
class TorchVgg:
    """A module of the family. depth: how many layers of `features` it is; None: a whole net."""

    arch: str
    depth: int | None
    state: Mapping[str, Any]


def describe(module: Any, arch: str | None = None) -> TorchVgg:
    """Return what a module is: a VGG of torchvision, or the first layers of the `features` of one.

    Raises ModelError for another module, which names the first layer that is not the family's.
    """
    check_arch(arch)
    while (inner := _WRAPPED.get(type(module).__name__)) and hasattr(module, inner):
        module = getattr(module, inner)
    if type(module).__name__ == "Sequential" and not _is_changed(module, ("torch.nn.modules.container", "Sequential")):
        return TorchVgg(_arch_of(module, arch, is_whole=False), len(module), module.state_dict())
    if _is_changed(module, _VGG):
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        if kind == _TIMMS:
            raise ModelError(f"the module is {kind}; give its state_dict()")
        raise ModelError(f"the module is {printable(kind)}, or has a forward of its own; {ACCEPTED}")
    found = _arch_of(module.features, arch, is_whole=True)
    _check_head(module)
    return TorchVgg(found, None, module.state_dict())


def _is_changed(module: Any, owner: tuple[str, str]) -> bool:
    """Return whether another class than `owner`, or the module itself, says what `forward` does."""
    first = next(base for base in type(module).__mro__ if "forward" in vars(base))
    return "forward" in vars(module) or (first.__module__, first.__qualname__) != owner


def _arch_of(features: Any, arch: str | None, *, is_whole: bool) -> str:
    """Return the first name of the family whose layers these are. Raises ModelError with what is not."""
    names = [name for name, _ in features.named_children()]
    children = list(features.children())
    if names != [str(index) for index in range(len(children))] or not children:
        raise ModelError(f"its layers are called {', '.join(map(printable, names[:3])) or 'nothing'}; {ACCEPTED}")
    best, fault = -1, ""
    for name in VARIANTS if arch is None else (arch,):
        layers = Vgg.named(name).convolutional
        fits = [_fits(*pair) for pair in zip(layers, children, strict=False)]
        if all(fits) and (len(children) == len(layers) or (len(children) < len(layers) and not is_whole)):
            return name
        if sum(fits) > best:
            place = fits.index(False) if False in fits else len(fits)
            found = _written(children[place]) if place < len(children) else "not there"
            wanted = _LAYERS[layers[place].kind][1] if place < len(layers) else "no layer"
            best, fault = sum(fits), f"its features.{place} is {found}, {name} has {wanted} there"
    raise ModelError(f"{fault}; {ACCEPTED}")


def _fits(layer: VggLayer, child: Any) -> bool:
    names, _, is_same = _LAYERS[layer.kind]
    return _is_of_torch(child, names) and is_same(child)


def _written(child: Any) -> str:
    """Return a layer as torch writes it, of one with layers inside only its class."""
    text = repr(child)
    return type(child).__name__ if "\n" in text else printable(text)


def _is_of_torch(child: Any, names: tuple[str, ...]) -> bool:
    """Return whether it is of one of these classes of torch.nn, and not of a subclass."""
    nn = loaded_torch().nn
    return any(type(child) is getattr(nn, name) for name in names) and "forward" not in vars(child)


def _pair(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value, value)


def _is_convolution(child: Any) -> bool:
    shape = _pair(child.kernel_size), _pair(child.stride), child.padding, _pair(child.dilation), child.groups
    return shape in (((3, 3), (1, 1), padding, (1, 1), 1) for padding in ((1, 1), "same")) and (
        child.padding_mode == "zeros"
    )


def _is_pool(child: Any) -> bool:
    shape = _pair(child.kernel_size), _pair(child.stride), _pair(child.padding), _pair(child.dilation)
    return shape == ((2, 2), (2, 2), (0, 0), (1, 1)) and not child.ceil_mode and not child.return_indices


# For each kind of layer the classes of torch.nn, how messages write it, and what else must be so.
_LAYERS: Final[Mapping[str, tuple[tuple[str, ...], str, Callable[[Any], bool]]]] = {
    "Conv": (("Conv2d",), "Conv2d(kernel_size=3, padding=1)", _is_convolution),
    "BatchNormalization": (
        ("BatchNorm2d", "SyncBatchNorm"),
        f"BatchNorm2d(eps={EPSILON:g})",
        lambda child: bool(child.eps == EPSILON),
    ),
    "Relu": (("ReLU",), "ReLU()", lambda _: True),
    "MaxPool": (("MaxPool2d",), "MaxPool2d(2, 2)", _is_pool),
}


def _check_head(module: Any) -> None:
    """Check what comes behind `features`."""
    remedy = f"give its .features where the scores are not needed; {ACCEPTED}"
    pool = module.avgpool
    if not _is_of_torch(pool, ("AdaptiveAvgPool2d",)) or _pair(pool.output_size) != (_SIDE, _SIDE):
        raise ModelError(f"its avgpool is {_written(pool)}, expected AdaptiveAvgPool2d((7, 7)); {remedy}")
    children = dict(module.classifier.named_children())
    for index, names in enumerate(_CLASSIFIER):
        child = children.pop(str(index), None)
        if child is None or not _is_of_torch(child, names):
            found = "not there" if child is None else _written(child)
            raise ModelError(f"its classifier.{index} is {found}, expected {' or '.join(names)}; {remedy}")
    if children:
        raise ModelError(f"its classifier has {len(children)} layers more than a VGG's seven; {remedy}")
