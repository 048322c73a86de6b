"""Odd uses of Python in forward: branches on values, prints, sizes of data, errors."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import warnings

import numpy as np
import torch
from attack.odd_uses.comparison import Raised, attempt
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import plain
from torch import nn


class Inner(nn.Module):
    """Has a layer before and after what its subclasses do in `middle`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


def several(model):
    """Calls of both signs without and with gradients."""
    made = []
    for sign in (1, -1, 1, -1):
        with torch.no_grad():
            made.append(model(sign * rows()))
    for sign in (1, -1):
        y = model(sign * rows())
        y.sum().backward()
        made.append(y)
    return made


class BranchesOnValue(Inner):
    def middle(self, y):
        return y * 2 if y.sum() > 0 else -y


@odd_use(BranchesOnValue)
def branch_on_a_value(model):
    return several(model)


class ReadsItem(Inner):
    def middle(self, y):
        return y * y.mean().item() + int(y.argmax()) + len(y.tolist())


@odd_use(ReadsItem)
def item_is_read(model):
    return several(model)


class Prints(Inner):
    def middle(self, y):
        print("mean", y.mean() > 0)
        logging.getLogger("model").warning("shape %s", tuple(y.shape))
        return y


@odd_use(Prints, gpu=False)  # it prints where its tensors are
def print_and_log(model):
    stream, out = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("model")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with contextlib.redirect_stdout(out):
            made = several(model)
    finally:
        logger.removeHandler(handler)
    return made, stream.getvalue(), out.getvalue()


class Warns(Inner):
    def middle(self, y):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return torch.relu(y)


@odd_use(Warns)
def forward_warns(model):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        made = several(model)
    return made, len([each for each in found if str(each.message) == "careful"])


class DynamicSizes(nn.Module):
    """Sizes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        y = self.inner(x)
        return y[y > 0], y.nonzero(), y.round().unique(), y[y.sum(1) > 0]


@odd_use(DynamicSizes)
def sizes_depend_on_values(model):
    made = []
    for seed in range(4):
        with torch.no_grad():
            made.append(model(rows(seed)))
    y = model(rows())
    (y[0].sum() + y[3].sum()).backward()
    return made


class Loops(nn.Module):
    """Repeats its layer until the values are small."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        steps = 0
        while x.abs().max() > 0.5 and steps < 10:
            x, steps = torch.tanh(self.inner(x)) * 0.8, steps + 1
        return x, steps


@odd_use(Loops)
def loop_until_a_value(model):
    with torch.no_grad():
        made = [model(rows(seed) * seed) for seed in range(5)]
    y, steps = model(rows())
    y.sum().backward()
    return made, steps


class Raises(Inner):
    """Fails if asked to."""

    fail = None
    calls = 0

    def middle(self, y):
        self.calls += 1
        if self.fail is not None:
            raise self.fail
        return y


@odd_use(Raises)
def forward_raises_then_works(model):
    model.eval()
    made = [model(rows()), model(rows())]
    for error in (ValueError("no"), KeyError("k"), StopIteration(), MemoryError(), OSError(2, "x")):
        model.fail = error
        made.append(attempt(model, rows()))
    model.fail = None
    return made, model(rows()), model.calls


@odd_use(Raises)
def keyboard_interrupt_in_forward(model):
    model.eval()
    made = [model(rows())]
    for error in (KeyboardInterrupt(), SystemExit(3)):
        model.fail = error
        try:
            made.append(model(rows()))
        except BaseException as found:
            made.append(Raised(found))
    model.fail = None
    y = model.train()(rows())
    y.sum().backward()
    return made, y


class FailsLate(nn.Module):
    """Changes a buffer before it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        y = self.inner(x)
        if bool(y.isnan().any()):
            raise ValueError("not a number")
        return y


@odd_use(FailsLate)
def failed_call_leaves_what_it_did(model):
    with torch.no_grad():
        made = [model(rows()), attempt(model, rows() * float("nan")), model(rows(1))]
    return made, attempt(model, rows(width=3)), model.calls


class Catches(Inner):
    def middle(self, y):
        try:
            y = y.view(3, -1, 7)
        except RuntimeError:
            y = y + 1
        finally:
            y = y * 2
        return y


@odd_use(Catches)
def forward_catches_an_error(model):
    return several(model)


class UsesNumpy(Inner):
    def middle(self, y):
        array = y.detach().numpy()
        return y + torch.from_numpy(np.sort(array, 1)) + float(np.linalg.norm(array))


@odd_use(UsesNumpy)
def numpy_in_the_middle(model):
    return several(model)


class BuildsModules(Inner):
    def middle(self, y):
        torch.manual_seed(0)
        return nn.Linear(8, 8)(y).relu() + nn.Parameter(torch.ones(8))


@odd_use(BuildsModules)
def modules_are_built_in_forward(model):
    return several(model)


class UsesThread(Inner):
    def middle(self, y):
        made = []
        thread = threading.Thread(target=lambda: made.append(y.detach() * 2))
        thread.start()
        thread.join()
        return y + made[0]


@odd_use(UsesThread)
def thread_in_forward(model):
    return several(model)


class UsesLock(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.lock, self.names = threading.Lock(), {"seen"}

    def middle(self, y):
        with self.lock:
            self.names.add(f"{y.shape[0]}")
        return y * len(self.names)


@odd_use(UsesLock)
def lock_and_set_in_forward(model):
    return several(model), model(rows(count=2)), sorted(model.names)


class Recurses(nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, depth=2):
        x = torch.tanh(self.inner(x))
        return self(x, depth - 1) if depth else x


@odd_use(Recurses)
def forward_calls_the_model_itself(model):
    with torch.no_grad():
        made = [model(rows(), depth) for depth in (0, 2, 4, 1, 2)]
    y = model(rows())
    y.sum().backward()
    return made, y


class Yields(nn.Module):
    """Forward is a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.inner(x))
            yield x


@odd_use(Yields)
def forward_is_a_generator(model):
    with torch.no_grad():
        made = [list(model(rows(seed))) for seed in range(3)]
    last = list(model(rows()))[-1]
    last.sum().backward()
    return made, last


class ReadsShape(nn.Module):
    """Branches on sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.wide = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        if x.shape[0] > 5:
            return self.wide(x) / x.shape[0]
        if x.shape[0] % 2:
            return self.inner(x) * x.shape[0] + sum(range(x.shape[0]))
        return self.inner(x).view(x.shape[0] // 2, 2, 8)


@odd_use(ReadsShape)
def branches_read_sizes(model):
    with torch.no_grad():
        made = [model(rows(count=count)) for count in (4, 2, 3, 5, 6, 1, 9, 2, 8, 3)]
    for count in (2, 3, 7, 1):
        y = model(rows(count=count))
        y.sum().backward()
        made.append(y)
    return made


@odd_use(plain)
def functions_are_patched_for_a_call(model):
    model.eval()
    before = torch.tanh
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        torch.tanh = torch.sin
        try:
            made += [model(rows()), model(rows())]
        finally:
            torch.tanh = before
    return made
