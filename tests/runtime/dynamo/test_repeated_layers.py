"""Layers that repeat: one is lowered, and the others are copies of it, op for op."""

import pytest

torch = pytest.importorskip("torch")

from placewright.cluster import Cluster  # noqa: E402
from placewright.deployment.call_capture import begin_capture  # noqa: E402
from placewright.runtime.dynamo import layer_copies, lowering  # noqa: E402
from placewright.runtime.dynamo.repeated_layers import find_layers  # noqa: E402

LAYERS = 8


class Layer(torch.nn.Module):
    """A layer with a state that it changes, and an output of its own."""

    def __init__(self, width=4):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.register_buffer("sums", torch.zeros(width))

    def forward(self, x, mask, keys):
        hidden = self.linear(x * mask)
        parts = torch.zeros_like(hidden)
        parts[..., :2] = hidden[..., :2].transpose(0, 1).contiguous().transpose(0, 1)
        self.sums.add_(hidden.sum(dim=(0, 1)))
        keys.append(torch.cat([hidden, torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])], dim=1))
        return x + parts + self.sums


class Layers(torch.nn.Module):
    def __init__(self, count=LAYERS, kind=Layer):
        super().__init__()
        self.layers = torch.nn.ModuleList(kind() for _ in range(count))
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x):
        mask = (x > 0).float()
        keys = []
        for layer in self.layers:
            x = layer(x, mask, keys)
        return self.head(x), x, keys


def inputs(length=3):
    return torch.randn(1, length, 4, generator=torch.Generator().manual_seed(length))


def build(kind=Layer, count=LAYERS):
    torch.manual_seed(0)
    return Layers(count, kind).eval()


def lower(model, *calls):
    """The graphs of calls, and what these return."""
    torch._dynamo.reset()
    placed = begin_capture(model, Cluster.parse("cpu"))
    with torch.no_grad():
        outputs = [model(*args) for args in calls]
    return placed.backend.graphs, outputs


def described(graph):
    """A graph's nodes, but for their names."""
    nodes = list(graph.module.graph.nodes)
    number = {node: at for at, node in enumerate(nodes)}
    lines = []
    for node in nodes:
        args = torch.fx.map_arg((node.args, node.kwargs), lambda each: number[each])
        value = node.meta.get("val")
        layout = (value.shape, value.stride()) if isinstance(value, torch.Tensor) else value
        stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
        lines.append((node.op, str(node.target), str(args), str(layout), stack))
    return lines


@pytest.fixture
def copied(monkeypatch):
    """The numbers of layers of graphs that were copied."""
    counts = []
    real = layer_copies.copy_layers

    def copy_layers(lowered, short):
        whole = real(lowered, short)
        counts.append(len(short.layers.nodes))
        return whole

    monkeypatch.setattr(lowering, "copy_layers", copy_layers)
    return counts


def lower_whole(model, *calls):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "find_layers", lambda module: None)
        return lower(model, *calls)


def test_copied_layers_are_op_for_op_those_that_aotautograd_makes(copied):
    calls = (inputs(3),), (inputs(5),), (inputs(7),)
    graphs, outputs = lower(build(), *calls)
    whole, expected = lower_whole(build(), *calls)
    assert copied
    assert min(copied) >= LAYERS - 1
    assert [described(graph) for graph in graphs] == [described(graph) for graph in whole]
    assert [graph.program.graph.ops for graph in graphs] == [
        graph.program.graph.ops for graph in whole
    ]
    torch.testing.assert_close(outputs, expected, rtol=0, atol=0)


def test_states_of_copied_layers_change_as_in_the_model(copied):
    model, twin = build(), build()
    lower(model, (inputs(),), (inputs(),))
    with torch.no_grad():
        twin(inputs())
        twin(inputs())
    assert copied
    for (name, value), (_, right) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(value, right, msg=name)


class SharedState(Layer):
    """Changes what all layers read."""

    def forward(self, x, mask, keys):
        mask.mul_(0.5)
        return super().forward(x, mask, keys)


class ChangedInput(Layer):
    """Changes its own input, which the layer before has made."""

    def forward(self, x, mask, keys):
        x += 1
        return super().forward(x, mask, keys)


class Passing(Layer):
    """Returns a view of its own state beside what it computes."""

    def forward(self, x, mask, keys):
        hidden = super().forward(x, mask, keys)
        keys[-1] = self.sums.view(1, 1, 4)
        return hidden


@pytest.mark.parametrize("kind", [SharedState, ChangedInput, Passing])
def test_layers_that_share_what_they_change_are_computed_as_in_the_model(kind):
    model, twin = build(kind), build(kind)
    _, outputs = lower(model, (inputs(3),), (inputs(5),))
    with torch.no_grad():
        expected = [twin(inputs(3)), twin(inputs(5))]
    for actual, right in zip(outputs[-1:], expected[-1:], strict=True):
        torch.testing.assert_close(actual[0], right[0])
        torch.testing.assert_close(actual[1], right[1])
        torch.testing.assert_close(actual[2], right[2])
    states = zip(model.named_buffers(), twin.named_buffers(), strict=True)
    for (name, value), (_, right) in states:
        torch.testing.assert_close(value, right, msg=name)


def test_layers_that_differ_in_one_number_are_not_copied(copied):
    class Scaled(Layer):
        count = 0

        def __init__(self):
            super().__init__()
            Scaled.count += 1
            self.scale = 1.0 / Scaled.count

        def forward(self, x, mask, keys):
            return super().forward(x * self.scale, mask, keys)

    model = build(Scaled)
    Scaled.count = 0
    twin = build(Scaled)
    _, outputs = lower(model, (inputs(),))
    with torch.no_grad():
        torch.testing.assert_close(outputs[0][0], twin(inputs())[0])
    assert not copied


def test_what_aotautograd_makes_of_a_layer_otherwise_is_lowered_as_a_whole(monkeypatch, copied):
    monkeypatch.setattr(
        layer_copies._LayerCopies,
        "_check_equal",
        lambda self: (_ for _ in ()).throw(layer_copies.UnequalLayersError("a test")),
    )
    graphs, outputs = lower(build(), (inputs(),))
    twin = build()
    with torch.no_grad():
        torch.testing.assert_close(outputs[0][0], twin(inputs())[0])
    assert len(graphs) == 1
    assert not copied


def test_a_run_begins_where_least_is_read_across():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.zeros(2)
    hidden = x
    for _ in range(LAYERS):
        parts = []
        for function in (torch.sin, torch.cos, torch.neg):
            parts.append(graph.call_function(function, (hidden,)))
        hidden = graph.call_function(torch.add, (parts[0], parts[1]))
        hidden = graph.call_function(torch.mul, (hidden, parts[2]))
        for node in (*parts, hidden, hidden.args[0]):
            node.meta["example_value"] = torch.zeros(2)
    graph.output((hidden,))
    layers = find_layers(torch.fx.GraphModule(torch.nn.Module(), graph))
    assert layers is not None
    assert len(layers.nodes) == LAYERS
    assert [node.target for node in layers.nodes[1]] == [
        torch.sin, torch.cos, torch.neg, torch.add, torch.mul,
    ]  # fmt: skip
