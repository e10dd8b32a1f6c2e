"""JAX as a contender: the whole graph in one XLA program, NHWC.

fp32 is strict (Precision.HIGHEST: no TF32); fp16 and bf16 cast weights and input; int8 is described in jax_int8.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from vgg16gpu.bench import jax_int8, jax_net
from vgg16gpu.bench.peers import PeerError, Setting
from vgg16gpu.bench.timing import Contender, Method, wall
from vgg16gpu.graph import Array

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
            network = jax_int8.network(setting.graph)
        else:
            host = jax_net.parameters(setting.graph, setting.sample_shape, setting.precision)
            network = jax_net.network(setting.graph, setting.precision)
        self._weights = jax.device_put(host, self._device)
        self._run = jax.jit(network)

    @contextmanager
    def contenders(self, x: Array) -> Iterator[Sequence[Contender]]:
        """One: XLA chooses layouts and algorithms itself."""
        strict = ", no TF32" if self._setting.precision == "fp32" else ""
        if self._integers:
            shape = jax_int8.input_shape(len(x), self._setting.sample_shape)
            inp: Any = jax_int8.random_bytes(shape, np.random.default_rng(1))
            found = [_JaxContender(self, inp, "NHWC, jit, int8, random data", jax_int8.REASON)]
        else:
            inp = jax_net.to_nhwc(self._setting.graph.input.from_file(x)).astype(jax_net.TYPES[self._setting.precision])
            found = [_JaxContender(self, inp, f"NHWC, jit{strict}", "")]
        try:
            yield found
        finally:
            found.clear()

    def run(self, x: Any) -> Any:
        """Enqueue the model on an array that lies on the device."""
        return self._run(self._weights, x)

    def put(self, x: Any) -> Any:
        """A host array on the device."""
        return jax.device_put(x, self._device)

    def close(self) -> None:
        """Free the weights and what was compiled."""
        self._weights = None
        jax.clear_caches()


class _JaxContender:
    """Calls are enqueued and return at once; there are no events, so time is the host's."""

    name = "jax"
    methods: Sequence[Method] = (Method.BACK_TO_BACK, Method.HOST_TO_HOST)

    def __init__(self, peer: JaxPeer, inp: Any, variant: str, unchecked: str) -> None:
        self.variant, self.unchecked = variant, unchecked
        self._peer, self._host = peer, inp
        self._inp = peer.put(inp)
        for _ in range(1 + _WARM_UP):
            peer.run(self._inp).block_until_ready()

    def scores(self) -> Array:
        """The first output, by way of the host."""
        return np.asarray(self._peer.run(self._peer.put(self._host))).astype(np.float32)

    def measure(self, method: Method, runs: int) -> list[float]:
        """Seconds of each run; back to back the calls are queued, the last result is waited for, time over count."""
        if method is Method.HOST_TO_HOST:
            return [wall(self.scores) for _ in range(runs)]
        return [wall(lambda: self._queue(runs)) / runs]

    def _queue(self, runs: int) -> None:
        for _ in range(runs):
            y = self._peer.run(self._inp)
        y.block_until_ready()


def _device(setting: Setting) -> Any:
    try:
        devices = jax.devices("gpu" if setting.kind == "cuda" else "cpu")
    except RuntimeError as error:
        raise PeerError(f"jax has no GPU here ({str(error).splitlines()[0]}): not compared") from error
    return devices[setting.ordinal if setting.kind == "cuda" else 0]
