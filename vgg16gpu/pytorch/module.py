"""What the modules have in common that torch's tools copy, store and compile."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final, NoReturn, Self

import torch
from torch import nn

from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import InputError
from vgg16gpu.pytorch import operators

_SHARED: Final = ("_model", "_graph", "_options")  # nobody changes them
_OF_PROCESS: Final = ("_engines", "_graph", "_handle")  # made anew where a module is unpickled


class KernelModule(nn.Module):
    """A torch module that computes with engines: one for each device and precision, built when a call needs it."""

    _model: Model
    _engines: dict[tuple[torch.device, str], Any]
    _handle: int

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a module of the same model and options, with engines of its own."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        memo[id(self._engines)] = {}
        copied.__dict__ = {
            name: value if name in _SHARED else deepcopy(value, memo) for name, value in self.__dict__.items()
        }
        copied._handle = operators.register(copied)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return its options and its model: the path of a file, or a model in memory with its weights."""
        return {name: value for name, value in self.__dict__.items() if name not in _OF_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take them; engines are built when tensors come."""
        super().__setstate__(state)
        self._engines = {}
        self._handle = operators.register(self)

    def __prepare_scriptable__(self) -> NoReturn:
        """Raise InputError where torch.jit.script comes: TorchScript has no words for our kernels."""
        raise InputError(
            f"{type(self).__name__} cannot be compiled by torch.jit.script; use torch.compile or torch.export, or "
            "leave it out of the script with @torch.jit.ignore"
        )
