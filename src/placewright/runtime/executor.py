"""A program, its model and a plan in; the model's outputs out, computed where the plan says."""

from __future__ import annotations

import queue
import weakref
from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import ExecutionError
from placewright.graph import STATE
from placewright.runtime.cpu_worker import (
    Done,
    Job,
    Note,
    Streamer,
    Worker,
)
from placewright.runtime.host_allocator import keep_memory
from placewright.runtime.instructions import script_of
from placewright.runtime.micro_batches import runners_of, updates_of
from placewright.runtime.openmp import send_team_home
from placewright.runtime.program.sources import given
from placewright.runtime.real_devices import (
    find_places,
    keeping_to,
    spare_cores,
)
from placewright.runtime.weight_storage import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from placewright.graph import Tensor
    from placewright.plan import Plan
    from placewright.runtime.cuda.issuer import Issuer
    from placewright.runtime.program.program import Program


class Executor:
    """Runs a program under a plan.

    Args:
        model: Whose weights it runs with; they are moved where the plan has them.
        where: Places of devices, by name, where their names do not say them; see `places`.
        keep: Tensors of the graph to be kept to the end of a step; `kept` has those of the last.
        seed: Draw random numbers so that every placement draws the same; None: as PyTorch does.
        graphs: Whether runs of ops on a GPU are captured once and replayed; None: if that is
            quicker.
        record: Told (position, begin, end) of every op that a worker runs.
        watch: Told (device, step, turn, outputs) after every op.
        rooms: Staging rooms that may be used, by device; a larger one takes a smaller one's place.
        lay_out: Whether streamed weights may move so that neighbours come in one copy; who reads
            them where they lie now would miss it.

    Raises:
        PlanError: The plan does not place the program's ops.
        ExecutionError: A device is not here, or has no room for its weights.
    """

    def __init__(
        self,
        program: Program,
        model: torch.nn.Module,
        plan: Plan,
        where: Mapping[str, str] | None = None,
        keep: Sequence[Tensor] = (),
        seed: int | None = None,
        graphs: bool | None = None,
        record: Callable[[int, float, float], None] | None = None,
        watch: Callable[..., None] | None = None,
        rooms: dict[str, torch.Tensor] | None = None,
        lay_out: bool = True,
    ) -> None:
        self.program, self.model, self.plan = program, model, plan
        self.places = find_places(plan.devices, where)
        self._spare = spare_cores(self.places)
        self._check_places()
        self.script = script_of(program, plan, self.places, keep)
        self.homes = settle(program, model, self.script, self.places, lay_out)
        self.kept: dict[Tensor, torch.Tensor] = {}
        self._keep = tuple(dict.fromkeys(keep))
        self._rooms = {} if rooms is None else rooms
        self.seed, self._graphs, self._record, self._watch = seed, graphs, record, watch
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._waiting: dict[int, list[Done]] = {}
        self._steps: dict[int, dict[int, tuple[torch.Tensor, torch.Tensor]]] = {}
        self._finished: dict[int, Any] = {}
        self._next = 0
        self._broken: str | None = None
        self._start()

    def _check_places(self) -> None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for place in self.places:
            if place.kind == "cuda" and place.index >= count:
                raise ExecutionError(
                    f"device {place.name!r} is CUDA device {place.index}: this machine has "
                    f"{count}; say another place, such as --where {place.name}=cpu or "
                    f"where={{{place.name!r}: 'cpu'}}"
                )

    # -- life ----------------------------------------------------------------------------------

    def _start(self) -> None:
        numbers = [at for at, part in enumerate(self.script.parts) if part.turns]
        gpus = frozenset(at for at, place in enumerate(self.places) if place.kind == "cuda")
        self.jobs = {number: self._job(number, gpus) for number in numbers}
        self.workers: dict[int, Worker] = {}
        self.streamers: list[Streamer] = []
        self.issuer = self._issuer({at: job for at, job in self.jobs.items() if at in gpus})
        homes, device = self.homes, self.script.device
        for number, job in self.jobs.items():
            if number in gpus:
                continue
            streamer = None
            if job.part.staging is not None:
                streamer = Streamer(job, lambda tensor: homes[device[tensor[0]]][tensor])
                self.streamers.append(streamer)
            self.workers[number] = Worker(job, streamer.inbox.put if streamer else None)
        keep_memory()  # before threads begin: each has its arena for good from then on
        threads: list[Worker | Streamer] = [*self.workers.values(), *self.streamers]
        for thread in threads:
            thread.start()
        weakref.finalize(self, _stop, [thread.inbox for thread in threads]).atexit = False

    def _issuer(self, jobs: Mapping[int, Job]) -> Issuer | None:
        if not jobs:
            return None
        from placewright.runtime.cuda.issuer import Issuer

        turn = {
            one.position: (number, index)
            for number, job in jobs.items()
            for index, one in enumerate(job.part.turns)
        }
        order = [turn[position] for position in self.script.order if position in turn]
        graphs = self._graphs
        drawn = any(op.kind == "random" for op in self.program.graph.ops)
        if self._watch is not None or (drawn and self.seed is not None):
            graphs = False  # who watches sees every op; and what is seeded is drawn on the host
        workers = len(jobs) < len(self.jobs)
        return Issuer(jobs, order, len(self.places), self._at_home, graphs, workers)

    def _job(self, number: int, gpus: frozenset[int]) -> Job:
        part, place, ops = self.script.parts[number], self.places[number], self.program.graph.ops
        runners = runners_of(self.program, part, place, self.seed)
        names = [ops[turn.position].name for turn in part.turns]
        return Job(
            number,
            place,
            part,
            self.homes[number],
            runners,
            names,
            _weakly(self._send),
            _weakly(self._report),
            gpus,
            self._rooms,
            self._record,
            self._watch,
        )

    def _send(self, target: int, note: Note) -> None:
        if target in self.workers:
            self.workers[target].inbox.put(note)
        elif self.issuer is not None:
            self.issuer.inbox.put(note._replace(key=(target, note.key)))

    def _report(self, done: Done) -> None:
        self._done.put(done)
        if done.failure is not None and self.issuer is not None:
            self.issuer.inbox.put(Note("stop"))  # or it would wait for what never comes

    def _at_home(self, tensor: Tensor) -> torch.Tensor:
        return self.homes[self.script.device[tensor[0]]][tensor]

    def close(self) -> None:
        """End the threads; the weights stay where they are."""
        threads: list[Worker | Streamer] = [*self.workers.values(), *self.streamers]
        for thread in threads:
            thread.inbox.put(Note("stop"))
        for thread in threads:
            thread.join(timeout=10)
        self._broken = self._broken or "it was closed"
        if self.issuer is not None:
            self.issuer.let_go()
        # Or a weight that the next executor moves away would stay here, too.
        self.homes = [{} for _ in self.places]
        self.issuer, self.jobs, self._rooms, self.kept = None, {}, {}, {}
        self.workers, self.streamers = {}, []  # which know the rooms, too

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- steps ---------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these arguments."""
        return self.only_result(self.submit(*args, **kwargs))

    def only_result(self, number: int) -> Any:
        """As `result`; who breaks it off, as with Control-C, will not ask again."""
        try:
            return self.result(number)
        except BaseException:
            if not self.broken:
                self._broken = "a step was broken off"
                self.close()
            raise

    def finish(self) -> None:
        """Let all steps in flight end; their results are kept until they are asked for."""
        for number in sorted(self._steps):
            self._finished[number] = self.only_result(number)

    @property
    def broken(self) -> bool:
        """Whether it cannot run any more: a step failed, or it was closed."""
        return self._broken is not None

    def submit(self, *args: Any, **kwargs: Any) -> int:
        """Begin a step and give its number; `result` waits for it.

        Raises:
            ExecutionError: An earlier step failed, or steps that change states would overlap.
        """
        if self._broken is not None:
            raise ExecutionError(f"the plan cannot be run any more: {self._broken}")
        if self._steps and not self.stateless:
            raise ExecutionError(
                "a step is still under way, and steps of this model change weights or states: "
                "wait for its result first"
            )
        if self.workers:
            send_team_home()  # of the caller, who only waits from now on
        tensors = given(self.program, args, kwargs)
        number, self._next = self._next, self._next + 1
        begins, states = self._inputs(tensors)
        self._steps[number], self._waiting[number] = states, []
        if self.issuer is not None:
            self.issuer.meet()
            self.issuer.inbox.put(Note("begin", number, None, begins))
        for device in self.workers:
            self._send(device, Note("begin", number, None, begins[device]))
        for device, part in enumerate(self.script.parts):
            for tensor, target in part.sends:
                self._hand_over(number, tensor, target, begins[device])
            if device not in self.jobs and part.outputs:
                here = {**self.homes[device], **begins[device]}
                kept = {tensor: here[tensor] for tensor in part.outputs}
                self._waiting[number].append(Done(number, device, kept))
        return number

    def _hand_over(
        self, step: int, tensor: Tensor, target: int, begins: Mapping[Tensor, torch.Tensor]
    ) -> None:
        """Send an input or a stored tensor to a device that reads it."""
        value: Any = begins[tensor] if tensor in begins else self._at_home(tensor)
        if value.is_cuda and self.places[target].kind == "cpu":
            lanes = {} if self.issuer is None else self.issuer.lanes
            lane = lanes.get(self.script.device[tensor[0]])
            value = value.cpu() if lane is None else lane.hand_out(value)
        self._send(target, Note("tensor", step, tensor, value))

    @property
    def stateless(self) -> bool:
        """Whether steps are independent, so that several may be in flight."""
        kinds = {op.kind for op in self.program.graph.ops}
        return STATE not in kinds and ("optimizer" not in kinds or self._updates_wait)

    @property
    def _updates_wait(self) -> bool:
        return all(update.waits for update in updates_of(self.jobs.values()))

    @property
    def _captured(self) -> bool:
        """Whether ops are replayed that were captured with tensors in their places."""
        return self.issuer is not None and bool(self.issuer.graphs.segments)

    @property
    def issued(self) -> str:
        """How GPUs are given their ops: as graphs, or one by one and why; nothing without GPUs."""
        return "" if self.issuer is None else str(self.issuer.graphs)

    @property
    def settled(self) -> bool:
        """Whether steps are run in one way from now on: the first few may try several."""
        return self.issuer is None or self.issuer.graphs.settled

    def result(self, number: int) -> Any:
        """What the model returned in a step, in its own structure.

        Raises:
            ExecutionError: An op failed; the message names it.
        """
        if number in self._finished:
            return self._finished.pop(number)
        if self.issuer is not None:
            with keeping_to(self._spare if self.workers else ()):  # which alone have a team
                self.issuer.run_until(number)
        idle = sum(
            device not in self.jobs and bool(part.outputs)
            for device, part in enumerate(self.script.parts)
        )
        while len(self._waiting[number]) < len(self.jobs) + idle:
            done = self._done.get()
            if done.failure is not None:
                where = self.places[done.device].name
                self._broken = f"op {done.where!r} failed on {where!r}: {done.failure}"
                self.close()
                raise ExecutionError(self._broken) from done.failure
            self._waiting[done.step].append(done)
        found = {
            tensor: value
            for done in self._waiting.pop(number)
            for tensor, value in done.outputs.items()
        }
        self.kept = {tensor: found[tensor] for tensor in self._keep}
        if self.issuer is not None:
            self.issuer.join(found.values())
        with torch.no_grad():
            self._put_back(found, self._steps.pop(number))
            return self.program.returned([self._output(found, at) for at in self.program.outputs])

    def _inputs(
        self, tensors: Mapping[int, torch.Tensor]
    ) -> tuple[list[dict[Tensor, torch.Tensor]], dict[int, tuple[torch.Tensor, torch.Tensor]]]:
        """What each device begins with; and the given states: as given, and where they are now."""
        begins: list[dict[Tensor, torch.Tensor]] = [{} for _ in self.places]
        states = {}
        for position, tensor in tensors.items():
            device = self.script.device[position]
            here = tensor.detach().to(self.places[device].torch_name)
            if self.program.graph.ops[position].kind == STATE:
                if here.is_inference() and self.places[device].kind == "cpu":
                    with torch.inference_mode(False):  # a worker may not change it otherwise
                        here = here.clone()
                bound = self.homes[device].get((position, 0))
                if bound is not None and self._captured and bound.shape == here.shape:
                    if bound.data_ptr() != here.data_ptr():  # graphs change states where they were
                        bound.copy_(here)
                    here = bound
                states[position] = (tensor, here)
                self.homes[device][position, 0] = here
            else:
                begins[device][position, 0] = here
        return begins, states

    def _put_back(
        self,
        found: Mapping[Tensor, torch.Tensor],
        states: Mapping[int, tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        """Write what was not written in place, and give the caller his changed states."""
        for state, new in self.script.left:
            self._at_home(state).copy_(found[new])
        for as_given, here in states.values():
            if here.data_ptr() != as_given.data_ptr():
                as_given.copy_(here)

    def _output(self, found: Mapping[Tensor, torch.Tensor], output: Any) -> torch.Tensor:
        value: torch.Tensor = found[output.tensor]
        for view in output.views:
            value = view(value)
        return value.clone() if output.copied else value


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Calls a method while its owner lives: a thread that waits for work does not keep it alive."""
    found = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        alive = found()
        if alive is not None:
            alive(*args)

    return call


def _stop(inboxes: Sequence[queue.SimpleQueue[Note]]) -> None:
    for inbox in inboxes:
        inbox.put(Note("stop"))
