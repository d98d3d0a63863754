"""Small ONNX models, written node by node: torch's exporter takes seconds."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper


def image_model(seed: int, side: int = 224, width: int = 12) -> onnx.ModelProto:
    """Images of ``side`` pixels, averaged in 16 places, to ``width`` features."""
    part = side // 4  # what is left over counts nowhere
    weights = np.random.default_rng(seed).normal(size=(48, width)).astype(np.float32)
    nodes = [
        helper.make_node(
            "AveragePool", ["images"], ["small"], kernel_shape=[part, part], strides=[part, part]
        ),
        helper.make_node("Flatten", ["small"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["features"]),
    ]
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, side, side])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.ravel())],
    )
    return _model(graph)


def text_model(whole: bool, words: int = 64, width: int = 8) -> onnx.ModelProto:
    """Token states out of a table of words, or, if ``whole``, their mean over the tokens that the mask shows."""
    table = np.random.default_rng(3).normal(size=(words, width)).astype(np.float32)
    constants = [helper.make_tensor("table", TensorProto.FLOAT, table.shape, table.ravel())]
    sizes: list[str | int] = ["batch", "tokens"]
    if whole:
        constants.append(helper.make_tensor("of tokens", TensorProto.INT64, [1], [1]))
        constants.append(helper.make_tensor("last", TensorProto.INT64, [1], [-1]))
        nodes = [
            helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
            helper.make_node("Cast", ["attention_mask"], ["shown"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["shown", "last"], ["weights"]),
            helper.make_node("Mul", ["rows", "weights"], ["weighted"]),
            helper.make_node("ReduceSum", ["weighted", "of tokens"], ["sum"], keepdims=0),
            helper.make_node("ReduceSum", ["weights", "of tokens"], ["count"], keepdims=0),
            helper.make_node("Div", ["sum", "count"], ["states"]),
        ]
        made: list[str | int] = ["batch", width]
    else:
        nodes = [helper.make_node("Gather", ["table", "input_ids"], ["states"])]
        made = [*sizes, width]
    names = ("input_ids", "attention_mask")
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, TensorProto.INT64, sizes) for name in names],
        [helper.make_tensor_value_info("states", TensorProto.FLOAT, made)],
        constants,
    )
    return _model(graph)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
