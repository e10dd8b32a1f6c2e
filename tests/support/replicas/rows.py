"""Whole files that are accepted, each with its source."""

from __future__ import annotations

from tests.support.replicas.base import FLOAT, HALF, SIZE, Replica, in_float32, retyped
from tests.support.replicas.branches import caffe2_resnet, resnet, squeezenet, torch_squeezenet
from tests.support.replicas.quantised import dequantised, qdq
from tests.support.replicas.torch_files import dynamo, equal_biases, torch_legacy, view
from tests.support.replicas.writer import OLD_STYLE
from tests.support.replicas.zoo_files import caffe2_alexnet, caffe2_vgg19, cntk_mnist, keras, mxnet, spatial, timm

ROWS: dict[str, Replica] = {
    "torch-legacy": Replica(torch_legacy),
    "torch-legacy-fixed-batch": Replica(lambda: torch_legacy(batch=3)),
    "torch-legacy-twice-the-size": Replica(lambda: torch_legacy(size=2 * SIZE)),
    "torch-legacy-opset9": Replica(lambda: torch_legacy(9, 4)),
    "torch-legacy-numbered": Replica(lambda: torch_legacy(9, 4, style=OLD_STYLE)),
    "torch-legacy-norm": Replica(lambda: torch_legacy(norm=True)),
    "torch-legacy-norm-opset9": Replica(lambda: torch_legacy(9, 4, norm=True)),
    "torch-equal-biases": Replica(equal_biases),
    "torch-weights-as-inputs-ir3": Replica(lambda: torch_legacy(8, 3, style=OLD_STYLE, weights_as_inputs=True)),
    "torch-weights-as-inputs-norm-ir3": Replica(lambda: torch_legacy(7, 3, norm=True, weights_as_inputs=True)),
    "torch-view-opset11": Replica(lambda: view(11, 6)),
    "torch-view-opset17": Replica(lambda: view(17, 8)),
    "torch-half": Replica(lambda: retyped(torch_legacy(), FLOAT, HALF), in_float32, 2e-3),
    "torch-half-norm": Replica(lambda: retyped(torch_legacy(norm=True), FLOAT, HALF), in_float32, 5e-3),
    **{
        f"dynamo-opset{opset}{'' if batch == 1 else '-open-batch'}": Replica(
            lambda opset=opset, batch=batch: dynamo(opset, batch=batch), external=True
        )
        for opset in (18, 20)
        for batch in (1, "batch")
    },
    "dynamo-one-file": Replica(dynamo),
    "dynamo-unoptimised": Replica(lambda: dynamo(folded=False), external=True),
    "dynamo-unoptimised-open-batch": Replica(lambda: dynamo(20, batch="batch", folded=False), external=True),
    "dynamo-unoptimised-norm": Replica(lambda: dynamo(folded=False, norm=True), external=True),
    "dynamo-half": Replica(lambda: dynamo(half=True), in_float32, 2e-3, external=True),
    "zoo-vgg16-7": Replica(mxnet),
    "zoo-vgg16-12": Replica(lambda: mxnet(12, 7)),
    "zoo-vgg16-bn-7": Replica(lambda: mxnet(norm=True), spatial, runs=False),
    "zoo-vgg19-caffe2": Replica(caffe2_vgg19),
    "zoo-bvlc-alexnet": Replica(caffe2_alexnet),
    "keras-opset13": Replica(keras),
    "keras-opset10": Replica(lambda: keras(10)),
    "timm": Replica(timm),
    "cntk-mnist-8": Replica(cntk_mnist),
    "zoo-vgg16-12-qdq": Replica(qdq, dequantised, 0.15),
    "qdq-per-channel": Replica(lambda: qdq(13, per_channel=True), dequantised, 0.15),
    "zoo-squeezenet": Replica(squeezenet),
    "torch-squeezenet": Replica(torch_squeezenet),
    "torch-resnet": Replica(resnet),
    "torch-resnet-bottleneck": Replica(lambda: resnet(bottleneck=True)),
    "torch-resnet-opset7-ir3": Replica(lambda: resnet(7)),
    "zoo-resnet": Replica(caffe2_resnet),
}
