"""Ray where it is installed, and a cluster of several nodes that are faked on this machine."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def ray_module() -> Any:
    """ray; skips, saying why, where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("ray", reason="ray is not installed: pip install 'vgg16gpu[ray]'")


def environment() -> dict[str, str]:
    """Of a process that finds this checkout, and tells nobody that it uses ray."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "PYTHON": sys.executable}


@contextmanager
def faked_cluster(cpus: int = 1) -> Iterator[tuple[Any, list[Any]]]:
    """(cluster, its nodes): two of `cpus` each, on addresses of the loopback of their own.

    On 127.0.0.1 the second one would wait for ever. A third, without processors, is the head: to remove it would end
    the cluster.
    """
    ray_module()
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 100 << 20}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "node_ip_address": "127.0.0.2", "include_dashboard": False, **memory},
        )
        try:
            nodes = [
                cluster.add_node(num_cpus=cpus, node_ip_address=address, **memory)
                for address in ("127.0.0.3", "127.0.0.4")
            ]
            yield cluster, nodes
        finally:
            cluster.shutdown()
