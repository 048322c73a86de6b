"""Odd uses from several threads and processes."""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from attack.odd_uses.comparison import Raised
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import mlp, plain
from torch import nn

CHILD_SECONDS = 20


def in_child(function):
    """What a function returns in a forked child, or that it came to a halt."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                made = function()
            except BaseException as error:
                made = f"{type(error).__name__}: {error}"
            os.write(writer, pickle.dumps(made))
        finally:
            os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], CHILD_SECONDS)
    made = pickle.loads(os.read(reader, 1 << 20)) if ready else "a halt"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    return made


@odd_use(plain, gpu=False, slow=True)
def forked_child_calls(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows())]
        child = in_child(lambda: [model(rows(seed)).tolist() for seed in range(2)])
        return made, child, model(rows())


@odd_use(plain, gpu=False, slow=True)
def forked_child_calls_first(model):
    with torch.no_grad():
        child = in_child(lambda: model(rows()).tolist())
        return child, model(rows())


@odd_use(plain, gpu=False, slow=True)
def forked_child_ends_without_a_call(model):
    with torch.no_grad():
        model(rows())
        return in_child(lambda: "done"), model(rows())


def in_threads(functions):
    with ThreadPoolExecutor(len(functions)) as pool:
        futures = [pool.submit(function) for function in functions]
        return [Raised(f.exception()) if f.exception() else f.result() for f in futures]


@odd_use(plain)
def threads_call_at_once(model):
    model.eval()

    def calls(seed):
        with torch.no_grad():
            return [model(rows(seed, 1 + (seed + at) % 3)) for at in range(5)]

    return in_threads([lambda seed=seed: calls(seed) for seed in range(6)])


@odd_use(plain)
def threads_have_modes_of_their_own(model):
    model.train()

    def calls(seed):
        made = []
        for at in range(4):
            with torch.set_grad_enabled((seed + at) % 2 == 0):
                y = model(rows(seed))
                made += [y, y.requires_grad]
        return made

    return in_threads([lambda seed=seed: calls(seed) for seed in range(4)])


@odd_use(plain)
def threads_differentiate(model):
    """Gradients of inputs, since sums of weights' depend on the order of threads."""

    def calls(seed):
        x = rows(seed).requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x)
        return gradient

    return in_threads([lambda seed=seed: calls(seed) for seed in range(6)])


@odd_use(plain)
def one_thread_fails(model):
    model.eval()

    def calls(seed):
        with torch.no_grad():
            return [model(rows(seed, width=3 if seed == 1 else 8)) for _ in range(3)]

    return in_threads([lambda seed=seed: calls(seed) for seed in range(3)]), model(rows())


@odd_use(plain)
def first_call_in_a_thread_that_ends(model):
    made = []
    thread = threading.Thread(target=lambda: made.append(model(rows())))
    thread.start()
    thread.join()
    made.append(model(rows(1)))
    made[0].sum().backward()
    made[1].sum().backward()
    return made


@odd_use(plain)
def backward_in_another_thread(model):
    y = model(rows())
    thread = threading.Thread(target=lambda: y.square().sum().backward())
    thread.start()
    thread.join()
    return y


@odd_use(mlp)
def calls_in_coroutines(model):
    model.eval()

    async def call(seed):
        await asyncio.sleep(0)
        with torch.no_grad():
            return model(rows(seed))

    async def calls():
        return await asyncio.gather(*(call(seed) for seed in range(5)))

    return asyncio.run(calls())


@odd_use(plain)
def call_inside_a_hook_of_itself(model):
    """A hook calls the same placed model with another batch."""
    made = []

    def hook(_module, _args, _output):
        if len(made) < 2:
            made.append(None)
            with torch.no_grad():
                made[-1] = model(rows(7))

    model.register_forward_hook(hook)
    return model(rows()), made


@odd_use(plain)
def number_of_threads_changes(model):
    with torch.no_grad():
        made = [model(rows())]
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        made.append(model(rows()))
        found = torch.get_num_threads()
        torch.set_num_threads(before)
    return made, found, model(rows()), torch.get_num_threads()


@odd_use(plain, gpu=False)  # DataParallel itself wants GPUs where there are some
def data_parallel_replicas_of_the_host(model):
    """DataParallel without a GPU calls the module itself."""
    parallel = nn.DataParallel(model)
    y = parallel(rows())
    y.sum().backward()
    return y, list(parallel.state_dict())
