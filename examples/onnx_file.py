"""An ONNX file: make a small one, place it on two GPUs, and write it back with its devices.

    python examples/onnx_file.py
    placewright place convnet.onnx --on 2xP100-nvlink+cpu --dims batch=8

Needs the extra `onnx`. The file has a symbolic dimension, `batch`, whose size planning must know.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import placewright as pw

CHANNELS = 128
DIMS = {"batch": 8}


def make_model(blocks: int = 3) -> onnx.ModelProto:
    """Convolutions in two branches whose outputs are added, `blocks` times."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    current, channels = "images", 3
    for block in range(blocks):
        for branch in ("left", "right"):
            name = f"{branch}{block}"
            for layer, (reads, inputs) in enumerate([(current, channels), (f"{name}.0", CHANNELS)]):
                kernel = rng.standard_normal((CHANNELS, inputs, 3, 3), dtype=np.float32) / 10
                weight, conv = f"{name}.{layer}.weight", f"{name}.{layer}.conv"
                weights.append(numpy_helper.from_array(kernel, weight))
                nodes += [
                    helper.make_node("Conv", [reads, weight], [conv], name=conv, pads=[1] * 4),
                    helper.make_node("Relu", [conv], [f"{name}.{layer}"], name=f"{name}.{layer}"),
                ]
        branches = [f"left{block}.1", f"right{block}.1"]
        nodes.append(helper.make_node("Add", branches, [f"sum{block}"], name=f"sum{block}"))
        current, channels = f"sum{block}", CHANNELS
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 64, 64])
    shape: list[str | int | None] = ["batch", CHANNELS, 64, 64]
    features = helper.make_tensor_value_info(current, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "convnet", [images], [features], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def main(folder: Path) -> None:
    path = folder / "convnet.onnx"
    onnx.save(make_model(), path)
    graph = pw.from_onnx(path, dims=DIMS)
    problem = pw.Problem(graph, pw.Cluster.parse("2xP100-nvlink+cpu"))
    result = pw.solve(problem, budget="1s", seed=0)
    print(result)

    exported = pw.export(problem, result.plan, to="onnx", model=path, dims=DIMS)
    placed = folder / "convnet-placed.onnx"
    exported.save(placed)
    print(f"{path} has {len(graph)} ops; {placed} names a device for each node")
    for note in exported.notes:
        print("lost in export:", note)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
