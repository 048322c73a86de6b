"""TorchDynamo traces tensors of several devices as if they were on one."""

from __future__ import annotations

import threading

from models import nn, torch
from torch._dynamo.backends.common import aot_autograd

from placewright.frontends.pytorch.logical_device import trace_on_device

CPU, META = torch.device("cpu"), torch.device("meta")


class Halves(nn.Module):
    """Two layers; the second's weights are on `meta`, which stands for another device."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.Linear(4, 4, bias=False), nn.Linear(4, 3, bias=False)
        self.far.to("meta")

    def forward(self, x):
        return self.far(self.near(x)).sum(1)


class Recorder:
    """A backend that records devices, and returns ones wherever it is told to."""

    def __init__(self, gradient_device=None) -> None:
        self.gradient_device = gradient_device
        self.traced, self.real = set(), []

    def __call__(self, module, example_inputs):
        return aot_autograd(fw_compiler=self.compile, bw_compiler=self.compile)(
            module, example_inputs
        )

    def compile(self, module, example_inputs):
        nodes = module.graph.nodes
        values = [node.meta.get("val") for node in nodes]
        self.traced |= {value.device for value in values if isinstance(value, torch.Tensor)}
        output = next(node for node in reversed(nodes) if node.op == "output")
        shapes = [None if node is None else node.meta["val"].shape for node in output.args[0]]
        descriptors = [type(each).__name__ for each in output.meta["desc"]]

        def run(args):
            self.real.append([value.device for value in args])
            devices = [
                self.gradient_device if name.startswith("Grad") and len(shape) == 2 else None
                for name, shape in zip(descriptors, shapes, strict=True)
                if shape is not None
            ]
            made = iter(devices)
            return [
                None if shape is None else torch.ones(shape, device=next(made)) for shape in shapes
            ]

        run._boxed_call = True
        return run


def test_fake_tensors_are_on_the_logical_device_and_real_ones_where_they_are():
    model, recorder = Halves(), Recorder()
    compiled = torch.compile(model, backend=recorder)
    with torch.no_grad(), trace_on_device(CPU):
        for _ in range(2):
            assert compiled(torch.ones(2, 4)).device == CPU
    assert recorder.traced == {CPU}
    assert len(recorder.real) == 2
    assert all(sorted(map(str, devices)) == ["cpu", "cpu", "meta"] for devices in recorder.real)
    assert model.far.weight.is_meta


def test_gradients_go_to_the_devices_of_their_weights():
    model = Halves()
    model.near.requires_grad_(False)
    compiled = torch.compile(model, backend=Recorder(META))
    with trace_on_device(CPU):
        compiled(torch.ones(2, 4)).sum().backward()
    assert model.far.weight.grad.is_meta
    assert model.far.weight.grad.shape == (3, 4)
    assert model.near.weight.grad is None


def test_threads_have_their_own_logical_devices():
    together, devices, failures = threading.Barrier(2), {}, []

    def trace(device):
        try:
            recorder = Recorder()
            with torch.no_grad(), trace_on_device(device):
                together.wait(60)
                torch.compile(Halves(), backend=recorder)(torch.ones(2, 4))
                together.wait(60)
            devices[device] = recorder.traced
        except Exception as error:
            failures.append(error)
            together.abort()

    threads = [threading.Thread(target=trace, args=(device,)) for device in (CPU, META)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert devices == {CPU: {CPU}, META: {META}}


def test_a_scope_ends_and_may_be_inside_another():
    def traced(model):
        recorder = Recorder()
        with torch.no_grad():
            torch.compile(model, backend=recorder)(torch.ones(2, 4))
        return recorder.traced

    plain = nn.Linear(4, 4)
    with trace_on_device(CPU):
        with trace_on_device(META):
            assert traced(plain) == {META}
        torch._dynamo.reset()
        assert traced(plain) == {CPU}
    torch._dynamo.reset()
    assert traced(plain) == {CPU}
    fake_mode = torch._subclasses.FakeTensorMode()
    assert fake_mode.from_tensor(torch.ones(2, device="meta")).device == META
