"""Executes steps of a program under a plan, each op on its device."""

from __future__ import annotations

import queue
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import ExecutionError
from placewright.graph import STATE
from placewright.runtime.callbacks import weak_callback
from placewright.runtime.cpu_worker import CpuWorker, DeviceJob, Message, StepDone, WeightStreamer
from placewright.runtime.host_allocator import retain_freed_memory
from placewright.runtime.instructions import compile_plan
from placewright.runtime.micro_batches import op_runners, weight_updates
from placewright.runtime.openmp import release_openmp_team
from placewright.runtime.program.sources import input_tensors, model_tensors
from placewright.runtime.real_devices import check_gpus, cpu_affinity, plan_devices, spare_cores
from placewright.runtime.staging_buffers import StagingBuffers
from placewright.runtime.step_states import StateMemory, StepStates
from placewright.runtime.weight_storage import place_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import TracebackType

    from placewright.graph import Tensor
    from placewright.plan import Plan
    from placewright.runtime.cuda.issuer import Issuer
    from placewright.runtime.cuda.streams import DeviceStreams
    from placewright.runtime.instructions import Instructions
    from placewright.runtime.program.host_products import HostKernels
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import RealDevice


class Executor:
    """Runs a program under a plan.

    Args:
        weights: The model, or its tensor of each weight by position; their data are moved to the
            devices that the plan names.
        device_map: Real devices of some of the plan's devices, by name; see `real_devices`.
        keep_tensors: Tensors of the graph that are kept until a step ends; `kept_tensors` has those
            of the last step.
        seed: Seed of random numbers, the same for every placement; None: as PyTorch draws them.
        cuda_graphs: Whether runs of ops on a GPU are captured once and replayed; None: if that is
            faster.
        record: Called with (position, begin, end) of every op that a worker runs.
        on_op: Called with (device, step, instruction, outputs) after every op.
        staging_buffers: Staging buffers to use, which other executors use, too.
        streams: CUDA streams to use, by device, which other executors use, too.
        pack_weights: Whether streamed weights may move in the host's memory, so that neighbours are
            copied together; anything that holds their old addresses breaks.
        host_kernels: Whether products of few rows on the CPU may use our own kernel, if faster.
        shared_weights: Positions of weights that share memory with tensors of the program; see
            `place_weights`.

    Raises:
        PlanError: The plan does not place the program's ops.
        ExecutionError: A device is missing, or has too little memory for its weights.
    """

    def __init__(
        self,
        program: Program,
        weights: torch.nn.Module | Mapping[int, torch.Tensor],
        plan: Plan,
        device_map: Mapping[str, str] | None = None,
        keep_tensors: Sequence[Tensor] = (),
        seed: int | None = None,
        cuda_graphs: bool | None = None,
        record: Callable[[int, float, float], None] | None = None,
        on_op: Callable[..., None] | None = None,
        staging_buffers: StagingBuffers | None = None,
        pack_weights: bool = True,
        host_kernels: HostKernels = True,
        shared_weights: Collection[int] = (),
        streams: dict[str, DeviceStreams] | None = None,
    ) -> None:
        self.program, self.plan = program, plan
        self.real_devices = self._find_devices(device_map)
        self._spare_cores = spare_cores(self.real_devices)
        check_gpus(self.real_devices)
        self.instructions = self._compile(keep_tensors)
        if isinstance(weights, torch.nn.Module):
            weights = model_tensors(program, weights)
        self.resident = place_weights(
            program, weights, self.instructions, self.real_devices, pack_weights, shared_weights
        )
        self.kept_tensors: dict[Tensor, torch.Tensor] = {}
        self._keep_tensors = tuple(dict.fromkeys(keep_tensors))
        self._staging_buffers = StagingBuffers() if staging_buffers is None else staging_buffers
        self._host_kernels, self._streams = host_kernels, streams
        self.seed, self._cuda_graphs, self._record, self._on_op = seed, cuda_graphs, record, on_op
        self._done_queue: queue.SimpleQueue[StepDone] = queue.SimpleQueue()
        self._done_by_step: dict[int, list[StepDone]] = {}
        self._state_memory = StateMemory(self.instructions.placement, self.real_devices)
        self._in_flight: dict[int, StepStates] = {}
        self._results: dict[int, list[torch.Tensor]] = {}
        self._next_step = 0
        self._caller: int | None = None  # the thread of the latest step
        self._failure: str | None = None
        self.accumulates_gradients = False
        """Whether steps sum gradients, until `apply_gradients` changes the weights."""
        self._start()

    _has_peers = False  # whether other processes have devices of the plan

    def _find_devices(self, device_map: Mapping[str, str] | None) -> tuple[RealDevice, ...]:
        return plan_devices(self.plan, device_map)

    def _compile(self, keep_tensors: Sequence[Tensor]) -> Instructions:
        return compile_plan(self.program, self.plan, self.real_devices, keep_tensors)

    # -- life ----------------------------------------------------------------------------------

    def _start(self) -> None:
        gpus = frozenset(
            index for index, real_device in enumerate(self.real_devices) if real_device.is_gpu
        )
        self.jobs = {
            number: self._new_job(number, gpus)
            for number, instructions in enumerate(self.instructions.per_device)
            if instructions.sequence
        }
        self.workers: dict[int, CpuWorker] = {}
        self.streamers: list[WeightStreamer] = []
        self.issuer = self._new_issuer(
            {index: job for index, job in self.jobs.items() if index in gpus}
        )
        resident, placement = self.resident, self.instructions.placement
        for number, job in self.jobs.items():
            if number in gpus:
                continue
            streamer = None
            if job.instructions.staging is not None:
                streamer = WeightStreamer(
                    job, lambda tensor: resident[placement[tensor[0]]][tensor]
                )
                self.streamers.append(streamer)
            self.workers[number] = CpuWorker(job, streamer.inbox.put if streamer else None)
        retain_freed_memory()  # before threads start: a thread never changes its arena
        threads: list[CpuWorker | WeightStreamer] = [*self.workers.values(), *self.streamers]
        for thread in threads:
            thread.start()
        weakref.finalize(self, _stop_threads, [thread.inbox for thread in threads]).atexit = False

    def _new_issuer(self, jobs: Mapping[int, DeviceJob]) -> Issuer | None:
        if not jobs:
            return None
        from placewright.runtime.cuda.issuer import Issuer

        index_of = {
            instruction.position: (number, index)
            for number, job in jobs.items()
            for index, instruction in enumerate(job.instructions.sequence)
        }
        order = [index_of[position] for position in self.instructions.order if position in index_of]
        cuda_graphs = self._cuda_graphs
        is_random = any(op.kind == "random" for op in self.program.graph.ops)
        if self._on_op is not None or (is_random and self.seed is not None):
            cuda_graphs = False  # callbacks need every op; seeded numbers are drawn on the host
        has_workers = self._has_peers or len(jobs) < len(self.jobs)
        return Issuer(
            jobs,
            order,
            len(self.real_devices),
            self._resident_tensor,
            cuda_graphs,
            has_workers,
            self._streams,
        )

    def _new_job(self, number: int, gpus: frozenset[int]) -> DeviceJob:
        instructions, real_device, ops = (
            self.instructions.per_device[number],
            self.real_devices[number],
            self.program.graph.ops,
        )
        runners = op_runners(self.program, instructions, real_device, self.seed, self._host_kernels)
        names = [ops[instruction.position].name for instruction in instructions.sequence]
        return DeviceJob(
            number,
            real_device,
            instructions,
            self.resident[number],
            runners,
            names,
            weak_callback(self._send),
            weak_callback(self._report),
            gpus,
            self._staging_buffers,
            self._record,
            self._on_op,
        )

    def _send(self, target: int, message: Message) -> None:
        if target in self.workers:
            self.workers[target].inbox.put(message)
        elif self.issuer is not None:
            self.issuer.inbox.put(message._replace(key=(target, message.key)))

    def _report(self, done: StepDone) -> None:
        self._done_queue.put(done)
        if done.failure is not None and self.issuer is not None:
            self.issuer.inbox.put(Message("stop"))  # or it would wait for a tensor that never comes

    def _resident_tensor(self, tensor: Tensor) -> torch.Tensor:
        return self.resident[self.instructions.placement[tensor[0]]][tensor]

    def close(self) -> None:
        """Stop the threads; the weights stay where they are."""
        threads: list[CpuWorker | WeightStreamer] = [*self.workers.values(), *self.streamers]
        for thread in threads:
            thread.inbox.put(Message("stop"))
        for thread in threads:
            thread.join(timeout=10)
        self._failure = self._failure or "it was closed"
        if self.issuer is not None:
            self.issuer.release()
        # Otherwise a weight that the next executor moves would keep its memory here, too.
        self.resident = [{} for _ in self.real_devices]
        self.issuer, self.jobs, self.kept_tensors = None, {}, {}
        self._staging_buffers = StagingBuffers()
        self.workers, self.streamers = {}, []  # which refer to the staging buffers, too
        for states in self._in_flight.values():  # no one ends these steps any more
            states.restore()
        self._in_flight.clear()

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
        """Run a step: the model's outputs for these arguments."""
        return self.result_or_close(self.submit(*args, **kwargs))

    def result_or_close(self, number: int) -> Any:
        """As `result`, but an interrupt, such as Control-C, closes the executor."""
        return self.program.pack_outputs(self.outputs_or_close(number))

    def outputs_or_close(self, number: int) -> list[torch.Tensor]:
        """As `output_tensors`, but an interrupt, such as Control-C, closes the executor."""
        try:
            return self.output_tensors(number)
        except BaseException:
            if not self.broken:
                self._failure = "a step was interrupted"
                self.close()
            raise

    def finish_steps(self) -> None:
        """Wait for all steps in flight; their results are kept for `result`."""
        for number in sorted(self._in_flight):
            self._results[number] = self.outputs_or_close(number)

    @property
    def step_count(self) -> int:
        """How many steps have begun."""
        return self._next_step

    @property
    def broken(self) -> bool:
        """Whether it cannot run any more: a step failed, or it was closed."""
        return self._failure is not None

    def submit(self, *args: Any, **kwargs: Any) -> int:
        """Begin a step; `result` waits for the step of the returned number.

        Raises:
            ExecutionError: An earlier step failed, or steps that change states would overlap.
        """
        return self.submit_tensors(input_tensors(self.program, args, kwargs))

    def submit_tensors(self, tensors: Mapping[int, torch.Tensor]) -> int:
        """As `submit`, with the tensor of each input by position; their shapes are not checked."""
        if self._failure is not None:
            raise ExecutionError(f"the plan cannot be run any more: {self._failure}")
        if self._in_flight and not self.stateless:
            raise ExecutionError(
                "a step is still in flight, and steps of this model change weights or states: "
                "wait for its result first"
            )
        if self.workers:
            release_openmp_team()  # of the calling thread, which only waits from now on
        self._caller = threading.get_ident()
        number, self._next_step = self._next_step, self._next_step + 1
        inputs, states = self._step_inputs(tensors)
        self._in_flight[number], self._done_by_step[number] = states, []
        if self.issuer is not None:
            self.issuer.wait_for_caller()
            self.issuer.inbox.put(Message("begin", number, None, inputs))
        for device in self.workers:
            self._send(device, Message("begin", number, None, inputs[device]))
        for device, instructions in enumerate(self.instructions.per_device):
            for tensor, target in instructions.sends:
                self._send_source(number, tensor, target, inputs[device])
            if device not in self.jobs and instructions.outputs:
                local_tensors = {**self.resident[device], **inputs[device]}
                outputs = {tensor: local_tensors[tensor] for tensor in instructions.outputs}
                self._done_by_step[number].append(StepDone(number, device, outputs))
        return number

    def _send_source(
        self, step: int, tensor: Tensor, target: int, inputs: Mapping[Tensor, torch.Tensor]
    ) -> None:
        """Send an input or a resident tensor to a device that reads it."""
        value: Any = inputs[tensor] if tensor in inputs else self._resident_tensor(tensor)
        if value.is_cuda and not self.real_devices[target].is_gpu:
            cuda_devices = {} if self.issuer is None else self.issuer.cuda_devices
            cuda_device = cuda_devices.get(self.instructions.placement[tensor[0]])
            value = value.cpu() if cuda_device is None else cuda_device.stored_to_host(value)
        self._send(target, Message("tensor", step, tensor, value))

    @property
    def stateless(self) -> bool:
        """Whether steps are independent, so that several may be in flight."""
        kinds = {op.kind for op in self.program.graph.ops}
        return STATE not in kinds and ("optimizer" not in kinds or self.accumulates_gradients)

    def accumulate_gradients(self, accumulates: bool) -> None:
        """Let steps from now on sum gradients, or change the weights themselves again."""
        self.accumulates_gradients = accumulates
        for update in weight_updates(self.jobs.values()):
            update.accumulates = accumulates

    def apply_gradients(self, count: int) -> None:
        """Change the weights by the mean gradient of the last steps; 0: forget their sums."""
        for update in weight_updates(self.jobs.values()):
            update.apply(count)

    def takes_memory_of_another_thread(self, tensors: Mapping[int, torch.Tensor]) -> bool:
        """Whether a step would use states of another thread's caller, who may read them meanwhile.

        Args:
            tensors: The tensor of each input, by position.
        """
        if self._caller == threading.get_ident() or not self._has_graphs:
            return False
        states = {at: value for at, value in tensors.items() if self._is_state(at)}
        return self._state_memory.borrows(states, self.resident)

    def _is_state(self, position: int) -> bool:
        return self.program.graph.ops[position].kind == STATE

    @property
    def _has_graphs(self) -> bool:
        """Whether CUDA graphs read tensors at fixed addresses."""
        return self.issuer is not None and bool(self.issuer.cuda_graphs.segments)

    @property
    def issue_mode(self) -> str:
        """How GPUs are issued their ops: as graphs, or one by one and why; empty without GPUs."""
        return "" if self.issuer is None else str(self.issuer.cuda_graphs)

    @property
    def is_warm(self) -> bool:
        """Whether it is decided if steps use CUDA graphs: the first few may try both."""
        return self.issuer is None or self.issuer.cuda_graphs.is_decided

    def result(self, number: int) -> Any:
        """Wait for a step: the model's outputs, in its own structure.

        Raises:
            ExecutionError: An op failed; the message names it.
        """
        return self.program.pack_outputs(self.output_tensors(number))

    def output_tensors(self, number: int) -> list[torch.Tensor]:
        """As `result`, but the tensors alone, in the order of the program's outputs."""
        if number in self._results:
            return self._results.pop(number)
        if self.issuer is not None:
            # The OpenMP teams of workers need all of their cores.
            with cpu_affinity(self._spare_cores if self.workers else ()):
                self.issuer.run_until(number)
        while len(self._done_by_step[number]) < self._reports_per_step:
            done = self._done_queue.get()
            if done.failure is not None:
                self._failure = self._failure_text(done)
                self.close()
                raise ExecutionError(self._failure) from done.failure
            self._done_by_step[done.step].append(done)
        tensors = {
            tensor: value
            for done in self._done_by_step.pop(number)
            for tensor, value in done.outputs.items()
        }
        self.kept_tensors = {tensor: tensors[tensor] for tensor in self._keep_tensors}
        if self.issuer is not None:
            self.issuer.join_caller(tensors.values())
        with torch.no_grad():
            for state, new in self.instructions.write_backs:  # not written in place
                self._resident_tensor(state).copy_(tensors[new])
            self._in_flight.pop(number).write_back()
            return [self._output(tensors, output) for output in self.program.outputs]

    @property
    def _reports_per_step(self) -> int:
        """How many devices report that they have ended their part of a step."""
        idle_devices = sum(
            device not in self.jobs and bool(instructions.outputs)
            for device, instructions in enumerate(self.instructions.per_device)
        )
        return len(self.jobs) + idle_devices

    def _failure_text(self, done: StepDone) -> str:
        return f"op {done.op!r} failed on {self.real_devices[done.device].name!r}: {done.failure}"

    def _step_inputs(
        self, tensors: Mapping[int, torch.Tensor]
    ) -> tuple[list[dict[Tensor, torch.Tensor]], StepStates]:
        """Each device's inputs, and the states among them."""
        placement = self.instructions.placement
        inputs: list[dict[Tensor, torch.Tensor]] = [{} for _ in self.real_devices]
        states = {}
        for position, tensor in tensors.items():
            if self._is_state(position):
                states[position] = tensor
            else:
                device = placement[position]
                torch_name = self.real_devices[device].torch_name
                inputs[device][position, 0] = tensor.detach().to(torch_name)
        return inputs, self._state_memory.begin_step(states, self.resident, self._has_graphs)

    def _output(self, tensors: Mapping[Tensor, torch.Tensor], output: Any) -> torch.Tensor:
        value: torch.Tensor = tensors[output.tensor]
        for view in output.views:
            value = view(value)
        return value.clone() if output.copied else value


def _stop_threads(inboxes: Sequence[queue.SimpleQueue[Message]]) -> None:
    for inbox in inboxes:
        inbox.put(Message("stop"))
