"""The property test has teeth: break any one rule in the reference and it no longer agrees."""

from __future__ import annotations

import heapq
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from strategies import STREAMING, plans, problems

from placewright import Cluster, Device, Graph, Link, Op, Plan, Problem, Table, simulate
from placewright.simulator import reference


@st.composite
def cases(draw):
    """Half of them with many streamed weights, whose rules are seldom met otherwise."""
    if draw(st.booleans()):
        problem = draw(problems(most=9, devices=2, kinds=STREAMING))
        return problem, draw(plans(problem, staged=True))
    problem = draw(problems(most=9, devices=3))
    return problem, draw(plans(problem))


def tight_chain():
    """Three blocks of 3 s whose weights are streamed in 2 s each, one at a time: seldom drawn."""
    ops: list[Op] = []
    for at in range(3):
        ops.append(Op(f"w{at}", "weight", outputs=(2,)))
        before = ((len(ops) - 2, 0),) if at else ()
        ops.append(Op(f"b{at}", inputs=(*before, (len(ops) - 1, 0))))
    devices = (Device("d0", memory=9), Device("d1", memory=9))
    links = {("d0", "d1"): Link(1.0), ("d1", "d0"): Link(1.0)}
    seconds = np.array([[0.0, 0.0], [3.0, 3.0]] * 3)
    table = Table(tuple(op.name for op in ops), ("d0", "d1"), seconds)
    problem = Problem(Graph("chain", tuple(ops)), Cluster("two", devices, links), table)
    return problem, (np.array([1, 0] * 3, dtype=np.int32), None, np.array([2, -1]))


def broken(**methods):
    """A step of the reference with some of its methods replaced."""
    return type("Broken", (reference._Step,), methods)


def no_serial_channel(self, channel):  # rule 5: many transfers at a time on one wire
    while self.tensors[channel]:
        transfer = heapq.heappop(self.tensors[channel])[1]
        self.used[transfer.target] += int(self.a.sizes[transfer.tensor])
        self._has(transfer.tensor, transfer.target)
        self._release((transfer.tensor, transfer.source))


def no_interrupts(self, channel):  # rule 5: tensors wait for streamed weights under way
    current = self.sending[channel]
    if current is None or not current.streamed:
        reference._Step._start_transfer(self, channel)


def overtaking_room(self, place):  # rule 6: a copy that does not fit is passed by those behind it
    a, waiting = self.a, list(self.wanted[place])
    for op, at, tensor in waiting:
        if a.sizes[tensor] <= self.room[place]:
            self.wanted[place].remove((op, at, tensor))
            self.wanted[place].appendleft((op, at, tensor))
            reference._Step._reserve(self, place)


def no_room_back(self, op):  # rule 6: room is given back at once instead of when the op ends
    reference._Step._one_less(self, op)
    if not self.missing[op] and self.held[op]:
        self.room[self.device[op]] += self.held[op]
        self.held[op] = 0
        self._reserve(self.device[op])


def by_name(self, op):  # rule 2: ready ops by position, not by when they became ready
    key = 0.0 if self.priority is None else float(self.priority[op])
    heapq.heappush(self.ready[self.device[op]], (key, op))


def no_issuer(self, place):  # rule 1: devices do not share their issuer
    self.issuer_free.clear()
    reference._Step._start_op(self, place)


def no_release(self, storage):  # rule 8: nothing is ever freed
    return


def free_views(self, tensor, place):  # rule 8: an alias does not keep its source alive
    reference._Step._count_uses(self, tensor, place)
    if self.parent[tensor, place] is not None:
        self.uses[self.parent[tensor, place]] -= 1


def never_streams(self, tensor, place):  # rule 6: staging is ignored
    return False


def channels_first(self):  # rule 7: transfers start before ops
    for channel in range(self.a.channels):
        self._start_transfer(channel)
    self._look()
    for place in range(self.a.devices):
        self._start_op(place)


SABOTAGE = {
    "channels serve many at once": broken(_start_transfer=no_serial_channel),
    "tensors do not interrupt": broken(_start_transfer=no_interrupts),
    "room goes to whom it fits": broken(_reserve=overtaking_room),
    "room comes back early": broken(_one_less=no_room_back),
    "ready ops by position": broken(_becomes_ready=by_name),
    "no issuer": broken(_start_op=no_issuer),
    "nothing is freed": broken(_release=no_release),
    "aliases keep nothing alive": broken(_count_uses=free_views),
    "nothing is streamed": broken(_streams=never_streams),
    "transfers before ops": broken(_start=channels_first),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_a_sabotaged_rule_is_noticed(name):
    def noticed(case):
        problem, (device, priority, staging) = case
        timeline = simulate(problem, Plan.of(problem, device, priority, staging=staging))
        try:
            in_order = problem.discipline == "in order"
            trace = SABOTAGE[name](problem.arrays, in_order, device, priority, staging).run()
        except Exception:  # a broken rule may well break the simulation
            return True
        memory = timeline.memory
        rows = list(
            zip(memory.device.tolist(), memory.time.tolist(), memory.used.tolist(), strict=True)
        )
        return (timeline.end.tolist(), timeline.peak.tolist(), rows) != (
            trace.end,
            trace.peak,
            trace.memory,
        )

    if noticed(tight_chain()):
        return
    quick = settings(
        max_examples=3_000,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    assert find(cases(), noticed, settings=quick, random=Random(0)) is not None
