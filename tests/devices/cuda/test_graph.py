"""CUDA graphs as they are made of a capture: which edges become programmatic. No GPU needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vgg16gpu.devices.cuda.graph import CudaGraph
from vgg16gpu.errors import KernelError

KERNEL, COPY = "kernel", "copy"
SUFFIXES = ["", "_v2"]  # how cuda-bindings of CUDA 13 and 12 call the functions that take edge data


class Bindings(SimpleNamespace):
    """cuda.bindings.driver with one stream, whose capture is a chain of `nodes`."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL=KERNEL)
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1
    CUgraphEdgeData = SimpleNamespace
    CUstream = int

    def __init__(self, suffix=""):
        self.nodes, self.edges, self.live, self.launched = [], {}, set(), []
        functions = {
            "cuStreamBeginCapture": lambda _stream, _mode: (0,),
            "cuStreamEndCapture": self.end_capture,
            "cuGraphGetRootNodes": lambda _graph, _count: (0, [10], 1),
            "cuGraphNodeGetType": lambda node: (0, self.nodes[node - 10]),
            f"cuGraphGetEdges{suffix}": self.get_edges,
            f"cuGraphRemoveDependencies{suffix}": self.remove_dependencies,
            f"cuGraphAddDependencies{suffix}": self.add_dependencies,
            "cuGraphInstantiate": self.instantiate,
            "cuGraphUpload": lambda _executable, _stream: (0,),
            "cuGraphLaunch": self.launch,
            "cuGraphDestroy": self.live.remove,
            "cuGraphExecDestroy": self.live.remove,
        }
        vars(self).update(functions)

    def enqueue(self, *nodes):
        """What a capture finds in the stream. Nodes are numbered from 10, and known in no particular order."""
        self.nodes += nodes
        heads = range(11, 10 + len(self.nodes))
        self.edges = {(head - 1, head): "full" for head in reversed(heads)}

    def programmatic(self):
        """The nodes, counted from 0, that are programmatic dependent launches."""
        return sorted(head - 10 for (_, head), data in self.edges.items() if data != "full")

    def end_capture(self, _stream):
        self.live.add("graph")
        return 0, "graph"

    def get_edges(self, _graph, count=0):
        tails, heads = zip(*self.edges, strict=True) if self.edges else ((), ())
        return 0, list(tails)[:count], list(heads)[:count], list(self.edges.values())[:count], len(self.edges)

    def remove_dependencies(self, _graph, tails, heads, data, count):
        assert (len(tails), len(heads), count) == (1, 1, 1)
        assert self.edges.pop((tails[0], heads[0])) == data[0]
        return (0,)

    def add_dependencies(self, _graph, tails, heads, data, _count):
        assert (data[0].from_port, data[0].type) == (1, 1)
        self.edges[tails[0], heads[0]] = data[0]
        return (0,)

    def instantiate(self, _graph, _flags):
        self.live.add("executable")
        return 0, "executable"

    def launch(self, executable, stream):
        self.launched.append((executable, stream))
        return (0,)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("nodes", "programmatic", "expected"),
    [
        ([KERNEL], [True], []),
        ([KERNEL] * 3, [True, True, True], [1, 2]),
        ([KERNEL] * 4, [False, True, False, True], [1, 3]),
        ([KERNEL] * 3, [True, False, False], []),
        ([COPY, KERNEL, KERNEL, KERNEL, COPY], [True, True, False], [2]),
        ([COPY, KERNEL, COPY], [True], []),
        ([COPY, COPY, KERNEL, KERNEL, COPY, KERNEL], [True, True, True], [3]),  # a copy may be more than one node
    ],
)
def test_launches_right_behind_launches_may_be_programmatic(suffix, nodes, programmatic, expected):
    bindings = Bindings(suffix)
    CudaGraph(bindings, 7, lambda: bindings.enqueue(*nodes), programmatic)
    assert bindings.programmatic() == expected
    assert set(bindings.edges) == {(10 + i, 11 + i) for i in range(len(nodes) - 1)}


def test_a_graph_is_launched_and_given_back():
    bindings = Bindings()
    graph = CudaGraph(bindings, 7, lambda: bindings.enqueue(COPY, KERNEL, COPY))
    assert bindings.live == {"executable"}
    graph.launch()
    assert bindings.launched == [("executable", 7)]
    graph.destroy()
    graph.destroy()
    assert not bindings.live


def test_what_fails_while_it_is_recorded_leaves_nothing_behind():
    bindings = Bindings()

    def fail():
        raise KernelError("conv9_9: the launch failed")

    with pytest.raises(KernelError, match="conv9_9"):
        CudaGraph(bindings, 7, fail)
    assert not bindings.live
