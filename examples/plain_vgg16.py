"""Run VGG16 on a GPU with three plain kernels: ONNX file, numpy, device buffers, a loop over layers, scores.

python examples/plain_vgg16.py                      # VGG16 with made weights: `vgg16gpu model make` writes the file
python examples/plain_vgg16.py digits --device cpu  # the small net for handwritten digits, without a GPU

Read this first. The kernels are in kernels/plain: a padded convolution with ReLU, a 2x2 max-pool, and a fully connected
layer that adds up in shared memory. Ten pictures are computed, one after the other, and compared with the scores of
onnxruntime in testbench/references. Between layers nothing returns to the host. Nothing here is fast: docs/kernels.md
says what each layer takes here and in the engine.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels" / "plain"
MODELS = {"vgg16": ROOT / "models" / "random-vgg16.onnx", "digits": ROOT / "vgg16gpu" / "data" / "digits.onnx"}
REFERENCES = {"vgg16": "vgg16-224-seed0.npz", "digits": "digits.npz"}
COUNT = 10  # pictures
TOLERANCE = 1e-5  # the largest error max|y - r| / max|r| of a picture's scores y that passes
SKIPPED = ("Relu", "Flatten", "Reshape", "Dropout", "Identity")  # part of the layer before, or no work at all

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Layer:
    """A launch: kernels/plain/<kernel>.cu, its weights, the integers it takes behind the pointers, grid and block."""

    name: str  # the node's output in the ONNX file
    kernel: str
    weights: list[Array]
    integers: list[int]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shape: tuple[int, ...]  # of the output: (C, H, W) or (features,)


def read_layers(path: Path) -> tuple[tuple[int, ...], list[Layer]]:
    """Return the shape of a picture, (C, H, W), and the layers of a VGG in an ONNX file.

    Raises ValueError for what the three kernels do not compute.
    """
    graph = onnx.load(path).graph
    numbers = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    source = next(value for value in graph.input if value.name not in numbers)
    picture = shape = tuple(dim.dim_value for dim in source.type.tensor_type.shape.dim)[1:]
    rectified = {node.input[0] for node in graph.node if node.op_type == "Relu"}
    layers = []
    for node in graph.node:
        given = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        if node.op_type in SKIPPED or (node.op_type == "AveragePool" and given["kernel_shape"] == [1, 1]):
            continue
        weights = [numbers[name] for name in node.input[1:]]
        layers.append(layer_of(node, given, shape, weights, relu=node.output[0] in rectified))
        shape = layers[-1].shape
    return picture, layers


def layer_of(
    node: onnx.NodeProto, given: dict[str, Any], shape: tuple[int, ...], weights: list[Array], *, relu: bool
) -> Layer:
    """Return the launch that computes a node, with these attributes, of an input (C, H, W) or (features,)."""
    name = node.output[0]
    if node.op_type == "Conv" and relu and fits(given, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1], group=1):
        channels, height, width = len(weights[0]), *shape[1:]
        grid = (-(-width // 32), -(-height // 8), channels)  # rounded up
        return Layer(name, "conv3x3_relu", weights, [*shape], grid, (32, 8, 1), (channels, height, width))
    if node.op_type == "MaxPool" and fits(given, kernel_shape=[2, 2], pads=[0] * 4, strides=[2, 2], ceil_mode=0):
        channels, height, width = shape[0], shape[1] // 2, shape[2] // 2
        grid = (-(-width // 32), -(-height // 8), channels)
        return Layer(name, "maxpool2x2", [], [*shape[1:]], grid, (32, 8, 1), (channels, height, width))
    if node.op_type == "Gemm" and fits(given, transA=0, transB=1, alpha=1.0, beta=1.0):
        outputs, inputs = weights[0].shape
        return Layer(name, "gemm_reduce", weights, [inputs, int(relu)], (outputs, 1, 1), (256, 1, 1), (outputs,))
    raise ValueError(f"these kernels do not compute {node.op_type} '{node.name}' with {given}; try `vgg16gpu infer`")


def fits(given: dict[str, Any], **needed: Any) -> bool:
    """Return whether a node has the needed attributes; those that it leaves out have ONNX's defaults."""
    defaults = {"pads": [0] * 4, "group": 1, "ceil_mode": 0, "transA": 0, "alpha": 1.0, "beta": 1.0}
    return all(given.get(name, defaults.get(name)) == value for name, value in needed.items())


class Gpu:
    """A GPU through PyCUDA: SourceModule compiles a kernel file and loads it."""

    def __init__(self) -> None:
        import pycuda.autoprimaryctx  # noqa: F401, PLC0415 - opens the GPU; the CPU does without PyCUDA
        import pycuda.driver as cuda  # noqa: PLC0415
        from pycuda.compiler import SourceModule  # noqa: PLC0415

        self.cuda = cuda
        self.name = cuda.Context.get_device().name()
        self.functions = {
            file.stem: SourceModule(file.read_text()).get_function(file.stem) for file in KERNELS.glob("*.cu")
        }

    def allocate(self, count: int) -> Any:
        """Return a buffer for `count` float32 numbers."""
        return self.cuda.mem_alloc(4 * count)

    def upload(self, buffer: Any, array: Array) -> None:
        """Copy a host array into a buffer."""
        self.cuda.memcpy_htod(buffer, array)

    def download(self, buffer: Any, count: int) -> Array:
        """Wait for all launches, and copy `count` numbers of a buffer to the host."""
        array = np.empty(count, np.float32)
        self.cuda.memcpy_dtoh(array, buffer)
        return array

    def launch(self, layer: Layer, buffers: list[Any]) -> None:
        """Enqueue a layer: pointers first, then its integers. The call does not wait."""
        integers = [np.int32(number) for number in layer.integers]
        self.functions[layer.kernel](*buffers, *integers, grid=layer.grid, block=layer.block)

    def mark(self) -> Any:
        """Enqueue an event: the GPU notes the time when it gets there."""
        event = self.cuda.Event()
        event.record()
        return event

    def milliseconds(self, first: Any, last: Any) -> float:
        """Return the time between two events, which must be over."""
        return float(last.time_since(first))


class Cpu:
    """The package's CPU device in place of a GPU: a C++ compiler compiles the same kernel files."""

    def __init__(self) -> None:
        from vgg16gpu.devices.cpu.device import CpuDevice  # noqa: PLC0415 - the plain path needs no package of ours
        from vgg16gpu.program import launch, types  # noqa: PLC0415 - as above

        self.launch_types, self.types = launch, types
        self.device = CpuDevice()
        self.name = self.device.facts.name
        self.kernels = {file.stem: launch.Kernel(str(file), file.stem) for file in KERNELS.glob("*.cu")}
        self.device.build(self.kernels.values())

    def allocate(self, count: int) -> int:
        """Return a buffer for `count` float32 numbers."""
        return self.device.allocate(4 * count)

    def upload(self, buffer: int, array: Array) -> None:
        """Copy a host array into a buffer."""
        self.device.copy_in(buffer, array)

    def download(self, buffer: int, count: int) -> Array:
        """Copy `count` numbers of a buffer to the host."""
        array = np.empty(count, np.float32)
        self.device.copy_out(array, buffer)
        return array

    def launch(self, layer: Layer, buffers: list[int]) -> None:
        """Run a layer: pointers first, then its integers."""
        given = self.types.Arena.GIVEN  # addresses that count from 0
        pointers = [self.types.Pointer(given, buffer) for buffer in buffers]
        integers = [self.launch_types.Scalar(number) for number in layer.integers]
        grid, block = self.launch_types.Dim3(*layer.grid), self.launch_types.Dim3(*layer.block)
        step = self.launch_types.KernelLaunch(self.kernels[layer.kernel], grid, block, (*pointers, *integers))
        self.device.bind([step], {given: 0})()

    def mark(self) -> float:
        """Return the time in seconds."""
        return time.perf_counter()

    def milliseconds(self, first: float, last: float) -> float:
        """Return the time between two marks."""
        return 1e3 * (last - first)


class Network:
    """The layers of a model on a device: weights uploaded once, and a buffer for each layer's output."""

    def __init__(self, device: Gpu | Cpu, picture: tuple[int, ...], layers: list[Layer]) -> None:
        self.device, self.layers = device, layers
        self.values = [device.allocate(int(np.prod(shape))) for shape in [picture, *(layer.shape for layer in layers)]]
        self.weights = [[self._uploaded(array) for array in layer.weights] for layer in layers]

    def _uploaded(self, array: Array) -> Any:
        buffer = self.device.allocate(array.size)
        self.device.upload(buffer, np.ascontiguousarray(array))
        return buffer

    def run(self, picture: Array) -> tuple[Array, list[float]]:
        """Return the scores of a picture (C, H, W), and the milliseconds of each layer."""
        self.device.upload(self.values[0], picture)
        marks = [self.device.mark()]
        for layer, weights, (inp, out) in zip(self.layers, self.weights, pairwise(self.values), strict=True):
            self.device.launch(layer, [out, inp, *weights])
            marks.append(self.device.mark())
        scores = self.device.download(self.values[-1], self.layers[-1].shape[0])
        return scores, [self.device.milliseconds(*two) for two in pairwise(marks)]


def main() -> int:
    """Compute the ten pictures, print errors and times, and return 0 if all scores are right, else 1."""
    parser = argparse.ArgumentParser(description="VGG16 with three plain kernels.")
    parser.add_argument("model", nargs="?", default="vgg16", choices=MODELS)
    parser.add_argument("--device", default="gpu", choices=["gpu", "cpu"])
    options = parser.parse_args()
    if not MODELS[options.model].is_file():
        parser.error(f"{MODELS[options.model]} is not there; `vgg16gpu model make` makes it")

    stored = np.load(ROOT / "testbench" / "references" / REFERENCES[options.model])
    pictures = (stored["pictures"][:COUNT].astype(np.float32) / 255 - stored["mean"]) / stored["std"]
    network = Network(Cpu() if options.device == "cpu" else Gpu(), *read_layers(MODELS[options.model]))
    agreed, times = 0, []
    for picture, expected in zip(pictures.transpose(0, 3, 1, 2), stored["scores"][:COUNT], strict=True):
        scores, milliseconds = network.run(np.ascontiguousarray(picture, np.float32))
        times.append(milliseconds)
        error = float(np.abs(scores - expected).max() / np.abs(expected).max())
        agreed += error <= TOLERANCE and scores.argmax() == expected.argmax()
        print(f"picture {len(times)}: best class {scores.argmax()}, onnxruntime {expected.argmax()}, error {error:.1e}")

    print(f"\nMedian milliseconds of each layer on {network.device.name}:")
    for layer, each in zip(network.layers, np.median(times, axis=0), strict=True):
        print(f"  {layer.kernel:12}  output {'x'.join(map(str, layer.shape)):11}  {each:9.3f}")
    print(f"{agreed} of {len(times)} agree with onnxruntime; {np.median(np.sum(times, axis=1)):.2f} ms a picture")
    return 0 if agreed == len(times) else 1


if __name__ == "__main__":
    sys.exit(main())
