"""The one exception family of the package: everything it raises on purpose derives from `Error`.

A message names the thing, the value found, what is accepted, and what to do next.
"""


class Error(Exception):
    """Base of every error that vgg16gpu raises on purpose."""


class ModelError(Error):
    """The ONNX file cannot be read, is not supported, or does not fit the request."""


class InputError(Error, ValueError):
    """The data given to a model has the wrong form: shape, type, count, or NaN/Inf values."""


class DeviceError(Error):
    """The device asked for is missing, unusable, or too small."""


class KernelError(Error):
    """A kernel did not compile, load or launch. `output`: all that the compiler wrote, where it was the compiler."""

    def __init__(self, message: str = "", output: str = "") -> None:
        super().__init__(message)
        self.output = output
