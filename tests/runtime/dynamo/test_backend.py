"""The backend of `torch.compile` runs a model under a plan without `pw.apply`."""

from __future__ import annotations

import pytest
from models import Branches, alternating_plan, nn, torch, twin

import placewright as pw
from placewright.errors import ConfigError, FileError, GraphError
from placewright.runtime.dynamo.backend import PlanBackend, placewright

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def no_compiled_code():
    """Code of models of one class is shared, and with it the graphs."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def backends(monkeypatch):
    """The backends that are made."""
    made, start = [], PlanBackend.__init__

    def recorded(self, *args, **kwargs):
        made.append(self)
        start(self, *args, **kwargs)

    monkeypatch.setattr(PlanBackend, "__init__", recorded)
    yield made
    for backend in made:
        backend.close()


@pytest.mark.parametrize("with_model", [True, False])
def test_a_compiled_model_is_right(backends, with_model):
    model = Branches()
    reference = twin(model)
    plan = alternating_plan(model.eval(), X)
    options = {"plan": plan} | ({"model": model} if with_model else {})
    compiled = torch.compile(model, backend=placewright, options=options)
    with torch.no_grad():
        for count in (4, 4, 3, 6):
            assert torch.equal(compiled(X[:count])["made"], reference(X[:count])["made"])
    for each in (compiled, reference):
        outputs = each.train()(X)
        (outputs["sum"] + outputs["made"].square().sum()).backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
    assert all(not graph.reason for backend in backends for graph in backend.graphs)
    if with_model:
        assert backends[0].graphs[0].plan is plan


def test_a_plan_may_be_a_file(tmp_path):
    model = Branches().eval()
    plan = alternating_plan(model, X)
    pw.save(plan, tmp_path / "plan.json")
    options = {"plan": tmp_path / "plan.json", "model": model}
    with torch.no_grad():
        made = torch.compile(model, backend=placewright, options=options)(X)["made"]
        assert torch.equal(made, model(X)["made"])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, ConfigError, "needs a plan"),
        (None, ConfigError, "needs a plan"),
        ({"plan": "plan", "plam": 3}, ConfigError, "option 'plam' .* is unknown: .*plan"),
        ({"plan": "no_such_plan.json"}, FileError, "no_such_plan.json"),
        ({"plan": 3}, ConfigError, "the plan is of type 'int': expected a plan, a result, or"),
    ],
)
def test_wrong_options_are_clear_errors(options, error, words):
    with pytest.raises(error, match=words):
        placewright(torch.fx.symbolic_trace(nn.ReLU()), [X], options=options)


def test_a_user_of_torch_compile_sees_the_error():
    model = Branches().eval()
    with pytest.raises(Exception, match="needs a plan") as raised, torch.no_grad():
        torch.compile(model, backend=placewright, options={})(X)
    assert isinstance(raised.value.__cause__ or raised.value, ConfigError | RuntimeError)
    assert not isinstance(raised.value, GraphError)
