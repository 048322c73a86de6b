"""Odd uses with functional transforms, other compilers and tracers."""

from __future__ import annotations

import copy

import torch
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import Branches, mlp, plain
from torch import fx, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


@odd_use(plain)
def call_with_other_weights(model):
    model.eval()
    other = {name: value * 2 for name, value in model.named_parameters()}
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        made += [functional_call(model, other, (rows(seed),)) for seed in range(3)]
        made += [functional_call(model, {"0.bias": torch.ones(16)}, (rows(),)), model(rows())]
    return made


@odd_use(plain)
def gradient_of_a_functional_call(model):
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(weights, x):
        return functional_call(model, weights, (x,)).square().mean()

    return grad(loss)(weights, rows()), model(rows())


@odd_use(plain)
def gradients_of_each_row(model):
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(weights, x):
        return functional_call(model, weights, (x[None],)).square().mean()

    return vmap(grad(loss), (None, 0))(weights, rows())


@odd_use(plain)
def vmap_over_a_batch(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows()), vmap(model)(rows()), vmap(model)(rows(1)), model(rows())]
        return made, vmap(model, 1, 1)(rows().t()), vmap(vmap(model))(rows().view(2, 2, 8))


@odd_use(mlp)
def vmap_with_random_numbers(model):
    model[3] = nn.Identity()
    different = vmap(model, randomness="different")(rows())
    same = vmap(model, randomness="same")(rows())
    return different, same


@odd_use(plain)
def ensemble_of_weights(model):
    others = [copy.deepcopy(dict(model.state_dict())) for _ in range(3)]
    stacked = {n: torch.stack([each[n] * i for i, each in enumerate(others)]) for n in others[0]}

    def call(weights, x):
        return functional_call(model, weights, (x,))

    with torch.no_grad():
        return vmap(call, (0, None))(stacked, rows()), model(rows())


@odd_use(plain)
def forward_mode(model):
    model.eval()
    value, tangent = jvp(model, (rows(),), (rows(1),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(rows(), rows(1))
        made = torch.autograd.forward_ad.unpack_dual(model(dual))
        return value, tangent, made.primal, made.tangent


@odd_use(plain)
def jacobians(model):
    value, pullback = vjp(model, rows(count=2))
    made = value, pullback(rows(1, 2)), jacrev(model)(rows(count=2))
    return made, jacfwd(model)(rows(count=2))


@odd_use(plain)
def hessian_of_a_call(model):
    return hessian(lambda x: model(x).square().sum())(rows(count=1))


@odd_use(plain)
def compiled_by_torch(model):
    model.eval()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        made = [compiled(rows(seed)) for seed in range(3)]
    y = compiled.train()(rows())
    y.sum().backward()
    return made, y, model(rows())


@odd_use(plain)
def compiled_by_torch_with_gradients(model):
    compiled = torch.compile(model, backend="aot_eager")
    made = []
    for seed in range(3):
        y = compiled(rows(seed, 2 + seed))
        y.sum().backward()
        made.append(y)
    return made


@odd_use(plain)
def inside_a_compiled_function(model):
    @torch.compile(backend="eager")
    def step(x):
        return model(x * 2).sum() + 1

    return [step(rows(seed)) for seed in range(3)], model(rows())


@odd_use(plain)
def compile_method_of_a_submodule(model):
    model[2].compile(backend="eager")
    made = [model(rows(seed)) for seed in range(3)]
    made[0].sum().backward()
    return made


@odd_use(Branches)
def dynamo_is_disabled(model):
    @torch._dynamo.disable
    def call(x):
        return model(x)

    with torch.no_grad():
        return [call(rows(seed)) for seed in range(3)], model(rows())


@odd_use(plain)
def dynamo_is_reset_between_calls(model):
    made = []
    for seed in range(4):
        made.append(model(rows(seed)))
        torch._dynamo.reset()
    return made


@odd_use(plain)
def exported(model):
    program = torch.export.export(model, (rows(),))
    made = program.module()(rows(1))
    return made, sorted(program.state_dict), model(rows())


@odd_use(plain)
def traced_by_jit(model):
    model.eval()
    traced = torch.jit.trace(model, (rows(),), check_trace=False)
    with torch.no_grad():
        return traced(rows(1)), model(rows(1))


@odd_use(plain)
def traced_by_fx(model):
    traced = fx.symbolic_trace(model)
    return traced(rows()), len(list(traced.graph.nodes)) > 4, model(rows())


class Log(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Doubles(TorchFunctionMode):
    """Doubles what every tanh makes."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made * 2 if func in (torch.tanh, torch.Tensor.tanh) else made


@odd_use(plain)
def dispatch_mode_sees_the_ops(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        with Log() as log:
            made.append(model(rows()))
    return made, [name for name in log.names if "mm" in name or "tanh" in name]


@odd_use(plain)
def function_mode_changes_ops(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        with Doubles():
            made += [model(rows()), model(rows())]
        return [*made, model(rows())]


@odd_use(plain)
def flops_are_counted(model):
    model.eval()
    with torch.no_grad():
        model(rows())
        counts = []
        for _ in range(2):
            with FlopCounterMode(display=False) as counter:
                model(rows())
            counts.append(counter.get_total_flops())
    return counts


@odd_use(plain)
def fake_tensors(model):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.no_grad():
        made = [model(rows())]
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            y = model(mode.from_tensor(rows()))
        return made, type(y).__name__, tuple(y.shape), model(rows())
