"""Small replicas of real ONNX files: the node sequences, attributes, names and quirks of each exporter, seeded weights.

ROWS are whole files of each source; ITEMS are single forms that files use; both are accepted. REFUSED are models that
are not, with the nodes that a refusal has to name; BROKEN are files that are no models, or lack a part.
"""

from __future__ import annotations

from tests.support.replicas.base import Array, Broken, Refused, Replica, answers, in_float32, retyped
from tests.support.replicas.broken import BROKEN
from tests.support.replicas.layers import CONVOLUTIONS, ELEMENTWISE, FULLY_CONNECTED, POOLS, SOFTMAXES
from tests.support.replicas.refused import REFUSED
from tests.support.replicas.rows import ROWS
from tests.support.replicas.shapes import LAYERS_AND_FOLDS, SHAPES
from tests.support.replicas.storage import FILES
from tests.support.replicas.torch_files import dynamo, equal_biases, torch_legacy

__all__ = [
    "BROKEN",
    "ITEMS",
    "REFUSED",
    "ROWS",
    "Array",
    "Broken",
    "Refused",
    "Replica",
    "answers",
    "dynamo",
    "equal_biases",
    "in_float32",
    "retyped",
    "torch_legacy",
]

ITEMS: dict[str, Replica] = {
    f"{kind}-{name}": replica
    for kind, group in {
        "conv": CONVOLUTIONS,
        "pool": POOLS,
        "fc": FULLY_CONNECTED,
        "elementwise": ELEMENTWISE,
        "softmax": SOFTMAXES,
        "shapes": SHAPES,
        "layers": LAYERS_AND_FOLDS,
        "file": FILES,
    }.items()
    for name, replica in group.items()
}
