"""The convolution lab: published experiments on GPU convolutions, run again, judged and drawn."""

from pathlib import Path

from vgg16gpu.devices.kernel_source import add_kernel_dir

_HERE = Path(__file__).resolve().parent
# A wheel carries the kernels inside the package; a checkout has them beside it.
add_kernel_dir(_HERE / "kernels" if (_HERE / "kernels").is_dir() else _HERE.parent / "kernels")
