"""GraphDefs and SavedModels built by hand, from the protobufs that tensorboard ships."""

from __future__ import annotations

import numpy as np
from tensorboard.compat.proto import graph_pb2, meta_graph_pb2, types_pb2

FLOAT, INT32, BOOL = types_pb2.DT_FLOAT, types_pb2.DT_INT32, types_pb2.DT_BOOL
CODES = {"float32": FLOAT, "int32": INT32, "bool": BOOL}


def fill(attribute, value):
    """Set an attribute to a Python value; a tuple is a shape, an array a tensor."""
    if isinstance(value, bool):
        attribute.b = value
    elif isinstance(value, int):
        attribute.i = value
    elif isinstance(value, str):
        attribute.s = value.encode()
    elif isinstance(value, tuple):
        attribute.shape.SetInParent()
        for size in value:
            attribute.shape.dim.add(size=size)
    elif isinstance(value, np.ndarray):
        attribute.tensor.dtype = CODES[value.dtype.name]
        attribute.tensor.tensor_shape.SetInParent()
        for size in value.shape:
            attribute.tensor.tensor_shape.dim.add(size=size)
        attribute.tensor.tensor_content = value.tobytes()
    elif value and isinstance(value[0], str):
        attribute.list.s.extend(entry.encode() for entry in value)
    else:
        attribute.list.i.extend(value)


def node(graph, op, name, *inputs, device="", types=None, calls=None, **attributes):
    """Add a node to a GraphDef (or to the nodes of a function)."""
    nodes = graph.node if hasattr(graph, "node") else graph
    made = nodes.add(op=op, name=name, input=list(inputs), device=device)
    for key, code in (types or {"T": FLOAT}).items():
        made.attr[key].type = code
    for key, function in (calls or {}).items():
        made.attr[key].func.name = function
    for key, value in attributes.items():
        fill(made.attr[key], value)
    return made


def placeholder(graph, name, shape, code=FLOAT):
    return node(graph, "Placeholder", name, types={"dtype": code}, shape=shape)


def constant(graph, name, values, dtype=np.float32):
    array = np.asarray(values, dtype)
    return node(graph, "Const", name, types={"dtype": CODES[array.dtype.name]}, value=array)


def function(graph, name, inputs, outputs):
    """Add a function to a GraphDef's library: the names of its inputs, and what it returns."""
    made = graph.library.function.add()
    made.signature.name = name
    for key in inputs:
        made.signature.input_arg.add(name=key, type=FLOAT)
    for key, reference in outputs.items():
        made.signature.output_arg.add(name=key, type=FLOAT)
        made.ret[key] = reference
    return made.node_def


def mlp(weights=constant):
    """Two layers: x[8,16] · w1[16,32] + b1, relu, · w2[32,4] + b2."""
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (8, 16))
    for name, shape in (("w1", (16, 32)), ("b1", (32,)), ("w2", (32, 4)), ("b2", (4,))):
        weights(graph, name, np.zeros(shape))
    node(graph, "MatMul", "body/first/MatMul", "x", "w1")
    node(graph, "BiasAdd", "body/first/BiasAdd", "body/first/MatMul", "b1")
    node(graph, "Relu", "body/Relu", "body/first/BiasAdd")
    node(graph, "MatMul", "head/MatMul", "body/Relu", "w2")
    node(graph, "AddV2", "head/add", "head/MatMul", "b2:0")
    return graph


def saved_model(graph, outputs=None):
    """The bytes of a SavedModel: schema version 1, one meta graph."""
    meta = meta_graph_pb2.MetaGraphDef()
    meta.meta_info_def.tags.append("serve")
    meta.graph_def.CopyFrom(graph)
    for signature, tensor in (outputs or {}).items():
        meta.signature_def[signature].outputs["y"].name = tensor
    content = meta.SerializeToString()
    size, length = len(content), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return b"\x08\x01\x12" + length + bytes([size]) + content


def variable(graph, name, values):
    """A resource variable, and nothing that initialises it."""
    node(graph, "VarHandleOp", name, types={"dtype": FLOAT}, shape=values.shape)


def training():
    graph = mlp(weights=variable)
    for name in ("w1", "b1", "w2", "b2"):
        node(graph, "ReadVariableOp", f"{name}/read", name, types={"dtype": FLOAT})
    for at in graph.node:
        if at.op != "ReadVariableOp":
            names = [entry.partition(":")[0] for entry in at.input]
            at.input[:] = [f"{n}/read" if n in ("w1", "b1", "w2", "b2") else n for n in names]
    variable(graph, "w2/m", np.zeros((32, 4)))
    graph.node[-1].attr["_class"].list.s.append(b"loc:@w2")
    placeholder(graph, "dy", (8, 4))
    node(graph, "MatMul", "gradients/MatMul", "body/Relu", "dy", transpose_a=True)
    constant(graph, "rate", 0.1)
    node(graph, "ResourceApplyMomentum", "update", "w2", "w2/m", "rate", "gradients/MatMul", "rate")
    constant(graph, "initial", np.ones((32, 4)))
    node(graph, "AssignVariableOp", "w2/Assign", "w2", "initial")
    node(graph, "NoOp", "init", "^w2/Assign")
    node(graph, "NoOp", "train", "^update")
    return graph


def while_loop(limit):
    graph = graph_pb2.GraphDef()
    placeholder(graph, "x", (8, 16))
    placeholder(graph, "n", (), INT32)
    constant(graph, "w", np.zeros((16, 16)))
    constant(graph, "start", 0, np.int32)
    constant(graph, "end", 10, np.int32)
    nodes = function(graph, "ask", ["i", "end", "h", "w"], {"r": "less:z:0"})
    node(nodes, "Less", "less", "i", "end", types={"T": INT32})
    nodes = function(
        graph, "step", ["i", "end", "h", "w"],
        {"i1": "next:z:0", "e1": "end", "h1": "tanh:y:0", "w1": "w"},
    )  # fmt: skip
    constant(nodes, "two", 2, np.int32)
    node(nodes, "AddV2", "next", "i", "two:output:0", types={"T": INT32})
    node(nodes, "MatMul", "product", "h", "w")
    node(nodes, "Tanh", "tanh", "product:product:0")
    node(graph, "StatelessWhile", "loop", "start", limit, "x", "w",
         calls={"cond": "ask", "body": "step"})  # fmt: skip
    node(graph, "Identity", "y", "loop:2")
    return graph
