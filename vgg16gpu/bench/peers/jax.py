"""JAX as a contender: the whole graph in one XLA program, NHWC.

fp32 is strict (Precision.HIGHEST) and, where the card has it, TF32, JAX's default; fp16 and bf16 cast weights and
input; int8 is described in jax_int8.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from vgg16gpu.bench.measure.timing import Method, wall
from vgg16gpu.bench.peers import jax_int8, jax_net
from vgg16gpu.bench.peers.base import PeerError, RunMethod, Setting
from vgg16gpu.compiler.graph.ops import Array

_WARM_UP = 3  # runs after the one that compiles


class JaxPeer:
    """The graph's ops in JAX, on the GPU of the setting, or on the CPU with as many threads as XLA takes."""

    notes: Sequence[str] = ()

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._device = _device(setting)
        self._integers = setting.precision == "int8"
        host: Mapping[str, Any]
        if self._integers:
            host = jax_int8.parameters(setting.graph, np.random.default_rng(0))
            self._run = jax.jit(jax_int8.network(setting.graph))
        else:
            host = jax_net.parameters(setting.graph, setting.sample_shape, setting.precision)
            self._run = jax.jit(jax_net.network(setting.graph, strict=setting.precision == "fp32"))
        self._weights = jax.device_put(host, self._device)
        self._run_tf32 = jax.jit(jax_net.network(setting.graph, strict=False))

    def ways(self, x: Array) -> Sequence[RunMethod]:
        """Return one way for each arithmetic: XLA chooses layouts and algorithms itself."""
        precision = self._setting.precision
        if self._integers:
            shape = jax_int8.input_shape(len(x), self._setting.sample_shape)
            inp: Any = jax_int8.random_bytes(shape, np.random.default_rng(1))
            return [self._way(inp, "NHWC, jit, int8, random data", unchecked=jax_int8.REASON)]
        inp = jax_net.to_nhwc(self._setting.graph.input.from_file(x)).astype(jax_net.TYPES[precision])
        found = [self._way(inp, f"NHWC, jit{', no TF32' if precision == 'fp32' else ''}")]
        if self._setting.tf32:
            found.append(self._way(inp, "NHWC, jit, TF32", tf32=True))
        return found

    def put(self, x: Any) -> Any:
        """Copy a host array to the device."""
        return jax.device_put(x, self._device)

    def release(self) -> None:
        """Do nothing: arrays go with their contenders."""

    def close(self) -> None:
        """Free the weights and what was compiled."""
        self._weights = None
        jax.clear_caches()

    def _way(self, inp: Any, variant: str, *, unchecked: str = "", tf32: bool = False) -> RunMethod:
        return RunMethod(variant, partial(_JaxContender, self, inp, variant, unchecked, tf32))

    def run(self, x: Any, tf32: bool) -> Any:
        """Enqueue the model on an array that lies on the device."""
        return (self._run_tf32 if tf32 else self._run)(self._weights, x)


class _JaxContender:
    """Calls are enqueued and return at once; there are no events, so time is the host's."""

    name = "jax"
    methods: Sequence[Method] = (Method.BACK_TO_BACK, Method.HOST_TO_HOST)

    def __init__(self, peer: JaxPeer, inp: Any, variant: str, unchecked: str, tf32: bool) -> None:
        self.variant, self.unchecked, self.tf32 = variant, unchecked, tf32
        self._peer, self._host = peer, inp
        self._inp = peer.put(inp)
        for _ in range(1 + _WARM_UP):
            peer.run(self._inp, tf32).block_until_ready()

    def scores(self) -> Array:
        """Compute the first output, from host to host."""
        return np.asarray(self._peer.run(self._peer.put(self._host), self.tf32)).astype(np.float32)

    def measure(self, method: Method, runs: int) -> list[float]:
        """Return seconds of each run; back to back the calls are queued, and the time to the last result is divided."""
        if method is Method.HOST_TO_HOST:
            return [wall(self.scores) for _ in range(runs)]
        return [wall(lambda: self._queue(runs)) / runs]

    def _queue(self, runs: int) -> None:
        for _ in range(runs):
            y = self._peer.run(self._inp, self.tf32)
        y.block_until_ready()


def _device(setting: Setting) -> Any:
    try:
        devices = jax.devices("gpu" if setting.kind == "cuda" else "cpu")
    except RuntimeError as error:
        raise PeerError(f"jax has no GPU here ({str(error).splitlines()[0]}): not compared") from error
    return devices[setting.ordinal if setting.kind == "cuda" else 0]
