"""Gathers the weights of all ranks on rank 0, for a checkpoint: its own, and copies of the others.

Rank 0 names the tensors, and each rank sends those that it holds, in that order, when its training
steps have ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import ExecutionError
from placewright.runtime.distributed.control_channel import ControlMessage, MessageKind
from placewright.runtime.distributed.rank_weights import (
    WEIGHT_TAG,
    named_tensors,
    ranks_of_weights,
    replace_tensors,
)
from placewright.runtime.distributed.tensor_frames import frame_bytes, pack_tensor, unpack_tensor
from placewright.runtime.distributed.transport import ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.plan import Plan
    from placewright.runtime.distributed.host_ranks import HostRanks
    from placewright.runtime.distributed.session import RankSession


def gather_weights(
    session: RankSession, model: torch.nn.Module, plan: Plan, host_ranks: HostRanks
) -> dict[str, Any]:
    """A model's whole `state_dict`, copied to the host, from rank 0.

    Names of one tensor have one copy.

    Raises:
        ExecutionError: A rank has failed, or a tensor has no data anywhere.
    """
    tensors, ranks = named_tensors(model), ranks_of_weights(model, plan, host_ranks)
    names: dict[int, dict[int, str]] = {peer: {} for peer in session.channels}  # of each tensor
    for name, tensor in tensors.items():
        if ranks[name] and session.rank not in ranks[name]:
            names[min(ranks[name])].setdefault(id(tensor), name)
    copies: dict[int, torch.Tensor] = {}  # of each tensor, by its id
    names = {peer: wanted for peer, wanted in names.items() if wanted}
    for peer, wanted in names.items():
        session.send(peer, ControlMessage(MessageKind.GATHER, data={"names": [*wanted.values()]}))
    for peer, wanted in names.items():
        copies |= dict(zip(wanted, _receive(session, peer, wanted, tensors), strict=True))
    return {name: _copy(value, name, tensors, copies) for name, value in model.state_dict().items()}


def send_weights(session: RankSession, model: torch.nn.Module, message: ControlMessage) -> None:
    """Send rank 0 the tensors that it names.

    Raises:
        ExecutionError: This rank does not hold one of them; or rank 0 has ended.
    """
    tensors = named_tensors(model)
    for executor in session.executors.values():
        executor.join_streams()
    for index, name in enumerate(message.data.get("names", ())):
        if name not in tensors or tensors[name].is_meta:
            raise ExecutionError(f"rank 0 asks for {name!r}, which this rank does not hold")
        value = tensors[name].detach().cpu()
        session.transport.send(pack_tensor(value, value, 0, (index, 0)), 0, WEIGHT_TAG)


def restore_weights(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Give a model's tensors on `meta` the data that were gathered."""
    values = {
        id(tensor): state[name]
        for name, tensor in named_tensors(model).items()
        if tensor.is_meta and name in state
    }
    replace_tensors(model, values)


def _receive(
    session: RankSession, peer: int, wanted: Mapping[int, str], tensors: Mapping[str, torch.Tensor]
) -> Sequence[torch.Tensor]:
    values = []
    try:
        for index, name in enumerate(wanted.values()):
            frame = torch.empty(frame_bytes(tensors[name]), dtype=torch.uint8)
            session.transport.receive(frame, peer, WEIGHT_TAG)(session.step_timeout)
            value = unpack_tensor(frame, tensors[name], 0, (index, 0))
            values.append(value.clone())  # of its own size, without the frame
    except ConnectionLost as error:
        session.fail(error)
        session.check()
    return values


def _copy(
    value: Any, name: str, tensors: Mapping[str, torch.Tensor], copies: dict[int, torch.Tensor]
) -> Any:
    """A copy of an entry of a state dict; what is no tensor stays."""
    if not isinstance(value, torch.Tensor):
        return value
    key = id(tensors.get(name, value))
    if key not in copies:
        if value.is_meta:
            raise ExecutionError(f"{name!r} has no data on any rank, so it cannot be gathered")
        copies[key] = value.detach().cpu().clone()
    return copies[key]
