"""Launches in a capture: programmatic edges, and nodes behind a condition. No GPU needed."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from vgg16gpu.devices.cuda.graph import CudaGraph, conditional_node, has_conditional_nodes, is_capturing, start_early
from vgg16gpu.errors import KernelError

KERNEL, COPY, CONDITIONAL = "kernel", "copy", "conditional"
STREAM, INNER = 7, 8
OF_CUDA_12 = ("cuStreamGetCaptureInfo_v3", "cuStreamUpdateCaptureDependencies_v2", "cuGraphAddNode_v2")


class Bindings(SimpleNamespace):
    """cuda.bindings.driver with streams that capture; nodes are numbered from 10.

    nodes: kinds of the nodes. edges: the data of each (tail, head), None for a plain one. graphs: the nodes of each.
    """

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL=KERNEL, CU_GRAPH_NODE_TYPE_CONDITIONAL=CONDITIONAL)
    CUgraphConditionalNodeType = SimpleNamespace(CU_GRAPH_COND_TYPE_IF="if")
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUstreamCaptureStatus = SimpleNamespace(CU_STREAM_CAPTURE_STATUS_ACTIVE=1)
    CUstreamUpdateCaptureDependencies_flags = SimpleNamespace(CU_STREAM_SET_CAPTURE_DEPENDENCIES=1)
    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1
    CU_GRAPH_COND_ASSIGN_DEFAULT = 1
    CUgraphEdgeData = SimpleNamespace
    CUstream = int

    def __init__(self, *, is_cuda_12: bool = False) -> None:
        self.nodes: dict[int, str] = {}
        self.edges: dict[tuple[int, int], Any] = {}
        self.graphs: dict[str, list[int]] = {}
        self.capturing: dict[int, str] = {}  # the graph by the stream
        self.before: dict[int, list[tuple[int, Any]]] = {}
        self.live: set[str] = set()
        self.launched: list[tuple[str, int]] = []
        self.conditions: list[tuple[str, int]] = []  # graph and handle
        functions = {
            "cuStreamBeginCapture": lambda stream, _mode: self.begin(stream, "graph"),
            "cuStreamBeginCaptureToGraph": lambda stream, graph, *_: self.begin(stream, graph),
            "cuStreamEndCapture": self.end,
            "cuStreamGetCaptureInfo": self.info,
            "cuStreamUpdateCaptureDependencies": self.update,
            "cuGraphNodeGetType": lambda node: (0, self.nodes[node]),
            "cuGraphConditionalHandleCreate": self.create_condition,
            "cuGraphAddNode": self.add_node,
            "cuCtxGetCurrent": lambda: (0, "context"),
            "cuDriverGetVersion": lambda: (0, 13000),
            "cuGraphInstantiate": self.instantiate,
            "cuGraphUpload": lambda _executable, _stream: (0,),
            "cuGraphLaunch": lambda executable, stream: (self.launched.append((executable, stream)) or 0,),
            "cuGraphDestroy": self.live.remove,
            "cuGraphExecDestroy": self.live.remove,
        }
        plain = {name.rpartition("_")[0]: name for name in OF_CUDA_12} if is_cuda_12 else {}
        vars(self).update({plain.get(name, name): function for name, function in functions.items()})

    def CUgraphNodeParams(self) -> Any:  # noqa: N802 - cuda-bindings' name
        return SimpleNamespace(conditional=SimpleNamespace())

    def enqueue(self, kind: str, stream: int = STREAM) -> int:
        """Capture a node of this kind."""
        node = self.new_node(self.capturing[stream], kind, self.before[stream])
        self.before[stream] = [(node, None)]
        return node

    def new_node(self, graph: str, kind: str, before: Sequence[tuple[int, Any]]) -> int:
        node = 10 + len(self.nodes)
        self.nodes[node] = kind
        self.edges.update({(tail, node): data for tail, data in before})
        self.graphs[graph].append(node)
        return node

    @property
    def programmatic(self) -> list[int]:
        """The nodes, counted from 0, that may start early."""
        for data in self.edges.values():
            assert data is None or (data.from_port, data.type) == (1, 1)
        return sorted(head - 10 for (_, head), data in self.edges.items() if data)

    def begin(self, stream: int, graph: str) -> tuple[int]:
        self.capturing[stream], self.before[stream] = graph, []
        self.graphs[graph] = []
        return (0,)

    def end(self, stream: int) -> tuple[int, str]:
        graph = self.capturing.pop(stream)
        if graph == "graph":
            self.live.add(graph)
        return 0, graph

    def info(self, stream: int) -> tuple[Any, ...]:
        if stream not in self.capturing:
            return 0, 0, 0, None, None, None, 0
        before = self.before[stream]
        return 0, 1, 99, self.capturing[stream], [node for node, _ in before], [data for _, data in before], len(before)

    def update(self, stream: int, nodes: list[int], data: list[Any] | None, count: int, flags: int) -> tuple[int]:
        assert (len(nodes), flags) == (count, 1)
        self.before[stream] = list(zip(nodes, data or [None] * count, strict=True))
        return (0,)

    def create_condition(self, graph: str, context: str, value: int, flags: int) -> tuple[int, int]:
        assert (context, value, flags) == ("context", 0, 1)  # not set unless somebody sets it
        self.conditions.append((graph, 1000))
        return 0, 1000

    def add_node(self, graph: str, before: list[int], data: Any, count: int, wanted: Any) -> tuple[int, int]:
        conditional = wanted.conditional
        assert (len(before), data, wanted.type) == (count, None, CONDITIONAL)
        assert (conditional.handle, conditional.type, conditional.size, conditional.ctx) == (1000, "if", 1, "context")
        conditional.phGraph_out = ["body"]
        return 0, self.new_node(graph, CONDITIONAL, [(node, None) for node in before])

    def instantiate(self, _graph: str, _flags: int) -> tuple[int, str]:
        self.live.add("executable")
        return 0, "executable"


@pytest.mark.parametrize("is_cuda_12", [False, True])
@pytest.mark.parametrize(
    ("nodes", "early", "expected"),
    [
        ([KERNEL], [True], []),
        ([KERNEL] * 3, [True, True, True], [1, 2]),
        ([KERNEL] * 4, [False, True, False, True], [1, 3]),
        ([KERNEL] * 3, [True, False, False], []),
        ([COPY, KERNEL, KERNEL, KERNEL, COPY], [False, True, True, False, False], [2]),
        ([COPY, KERNEL, COPY], [False, True, False], []),
        ([COPY, COPY, KERNEL, KERNEL, COPY, KERNEL], [False, False, True, True, False, True], [3]),
    ],
)
def test_launches_right_behind_launches_may_start_early(
    nodes: list[str], early: list[bool], expected: list[int], is_cuda_12: bool
) -> None:
    bindings = Bindings(is_cuda_12=is_cuda_12)

    def enqueue() -> None:
        for kind, is_early in zip(nodes, early, strict=True):
            if is_early:
                start_early(bindings, STREAM)
            bindings.enqueue(kind)

    CudaGraph(bindings, STREAM, enqueue)
    assert bindings.programmatic == expected
    assert set(bindings.edges) == {(10 + i, 11 + i) for i in range(len(nodes) - 1)}


def test_a_launch_behind_two_others_waits_for_both() -> None:
    bindings = Bindings()
    bindings.begin(STREAM, "graph")
    bindings.before[STREAM] = [(bindings.new_node("graph", KERNEL, ()), None) for _ in range(2)]
    start_early(bindings, STREAM)
    bindings.enqueue(KERNEL)
    assert bindings.programmatic == []


def test_nothing_happens_where_nobody_captures() -> None:
    bindings = Bindings()
    start_early(bindings, STREAM)
    assert not is_capturing(bindings, STREAM)
    bindings.begin(STREAM, "graph")
    assert is_capturing(bindings, STREAM)


@pytest.mark.parametrize("is_cuda_12", [False, True])
def test_launches_behind_a_condition(is_cuda_12: bool) -> None:
    """Check the order: the launch before, the decision, the conditional node, the launch after it."""
    bindings = Bindings(is_cuda_12=is_cuda_12)
    bindings.begin(STREAM, "graph")
    first = bindings.enqueue(KERNEL)
    decided: list[tuple[int, int]] = []
    with conditional_node(bindings, STREAM, INNER, lambda it: decided.append((it, bindings.enqueue(KERNEL)))):
        inner = [bindings.enqueue(KERNEL, INNER) for _ in range(2)]
    last = bindings.enqueue(KERNEL)
    ((condition, decision),) = decided
    assert bindings.conditions == [("graph", condition)]
    (node,) = (node for node, kind in bindings.nodes.items() if kind == CONDITIONAL)
    assert bindings.graphs == {"graph": [first, decision, node, last], "body": inner}
    assert set(bindings.edges) == {(first, decision), (decision, node), (node, last), tuple(inner)}
    assert INNER not in bindings.capturing


def test_a_launch_that_fails_behind_a_condition_ends_its_capture() -> None:
    bindings = Bindings()
    bindings.begin(STREAM, "graph")
    with (
        pytest.raises(KernelError, match="conv9_9"),
        conditional_node(bindings, STREAM, INNER, lambda _: None),
    ):
        raise KernelError("conv9_9: the launch failed")
    assert INNER not in bindings.capturing


@pytest.mark.parametrize(("version", "expected"), [(12030, False), (12040, True), (13000, True)])
def test_conditions_need_a_driver_that_knows_them(version: int, expected: bool) -> None:
    bindings = Bindings()
    bindings.cuDriverGetVersion = lambda: (0, version)
    assert has_conditional_nodes(bindings) is expected
    del bindings.cuGraphConditionalHandleCreate  # cuda-bindings of CUDA 12.0
    assert not has_conditional_nodes(bindings)


def test_a_graph_is_launched_and_given_back() -> None:
    bindings = Bindings()
    graph = CudaGraph(bindings, STREAM, lambda: [bindings.enqueue(kind) for kind in (COPY, KERNEL, COPY)] and None)
    assert bindings.live == {"executable"}
    graph.launch()
    assert bindings.launched == [("executable", STREAM)]
    graph.destroy()
    graph.destroy()
    assert not bindings.live


def test_what_fails_while_it_is_recorded_leaves_nothing_behind() -> None:
    bindings = Bindings()

    def fail() -> None:
        raise KernelError("conv9_9: the launch failed")

    with pytest.raises(KernelError, match="conv9_9"):
        CudaGraph(bindings, STREAM, fail)
    assert not bindings.live
