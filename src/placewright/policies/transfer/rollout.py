"""Rolls out a policy over (group, device) pairs: all episodes at once, group after group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from placewright.scheduling.batched_schedules import BatchedSchedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.scheduling.batched_schedules import RankedOp, ScheduleOrder

    DeviceLogits = Callable[[int, NDArray[np.float32]], NDArray[np.floating]]
    """Maps a group and its features (episodes × devices × features) to episodes × devices."""
    MergeLogits = Callable[[int, NDArray[np.float32], NDArray[np.int64]], NDArray[np.floating]]
    """Maps a group, its features and its partner's device (episodes; -1 for none) to the logits
    (episodes) of merging with the partner."""

_MASKED_LOGIT = -1e9  # the logit of an illegal device


class FeatureSource(Protocol):
    """Features of a group on each device."""

    @property
    def order(self) -> ScheduleOrder: ...

    @property
    def width(self) -> int:
        """The number of features."""
        ...

    def prepare(self, schedule: BatchedSchedule) -> None:
        """Set the placement before anything is decided."""
        ...

    def features(self, schedule: BatchedSchedule, ranked_op: RankedOp) -> NDArray[np.float64]:
        """Episodes × devices × features of the group that is decided at this op."""
        ...


@dataclass(frozen=True, eq=False)
class Rollout:
    """Episodes that were rolled out.

    Args:
        device: Episodes × decisions: the device of each group, in the order of deciding.
        features: Decisions × episodes × devices × features.
        start: Episodes × ops: when the list schedule starts each op.
        option: As `device`, with the number of devices where a group was merged.
        merge_device: Decisions × episodes: the device of the merge partner, -1 for none.
        end: Episodes: when the list schedule ends.
        overflow: Episodes: the largest estimated overflow of a device, in bytes.
    """

    device: NDArray[np.int32]
    features: NDArray[np.float32]
    logit_shift: NDArray[np.float32]
    log_prob: NDArray[np.float32]
    start: NDArray[np.float64]
    option: NDArray[np.int32]
    merge_device: NDArray[np.int64]
    end: NDArray[np.float64]
    overflow: NDArray[np.float64]


def roll_out(
    source: FeatureSource,
    logits_of: DeviceLogits,
    gumbel: NDArray[np.float64] | None = None,
    logit_noise: NDArray[np.float64] | None = None,
    forced_options: NDArray[np.integer] | None = None,
    keep_features: bool = False,
    merge_logits: MergeLogits | None = None,
) -> Rollout:
    """Give each group a device, in all episodes at once: sampled, or as `forced_options`.

    Args:
        gumbel: Decisions × episodes × devices: Gumbel noise, zeros for the argmax device.
        logit_noise: The same, normal noise, added to the logits as a share of their size.
        forced_options: Episodes × decisions: options, which are devices unless groups may merge.
        keep_features: Whether features are kept, for gradients.
        merge_logits: If given, a group may also merge with the source of its slowest transfer: one
            more option, after the devices, that puts it on that source's device.
    """
    order = source.order
    inputs = forced_options if gumbel is None else gumbel.transpose(1, 0, 2)
    assert inputs is not None
    count, decisions = inputs.shape[:2]
    schedule = BatchedSchedule(order, count)
    source.prepare(schedule)
    devices = schedule.arrays.devices
    device = np.zeros((count, decisions), dtype=np.int32)
    option = np.zeros((count, decisions), dtype=np.int32)
    merge_device = np.full((decisions, count), -1, dtype=np.int64)
    log_prob = np.zeros((count, decisions), dtype=np.float32)
    kept_features: list[NDArray[np.float32]] = []
    logit_shifts: list[NDArray[np.float32]] = []

    def decide(
        decision: int, features: NDArray[np.float32], ranked_op: RankedOp | None
    ) -> NDArray[np.int64]:
        group = int(order.decision_groups[decision])
        logits = logits_of(group, features)
        legal = np.broadcast_to(order.legal[group], (count, devices))
        if merge_logits is not None:
            merge_device[decision] = _merge_devices(order, schedule, group, ranked_op)
            merge_logit = merge_logits(group, features, merge_device[decision])
            logits = np.concatenate([logits, merge_logit[:, None]], axis=1)
            legal = np.concatenate([legal, merge_device[decision][:, None] >= 0], axis=1)
        if logit_noise is not None:
            scale = np.sqrt(np.square(logits).mean(axis=1, keepdims=True))
            logit_shifts.append((logit_noise[decision] * scale).astype(np.float32))
            logits = logits + logit_shifts[-1]
        logits = np.where(legal, logits, _MASKED_LOGIT)
        if gumbel is None:
            assert forced_options is not None
            choice = np.asarray(forced_options[:, decision], dtype=np.int64)
        else:
            choice = (logits + gumbel[decision]).argmax(axis=1)
        log_probs = logits - logits.max(axis=1, keepdims=True)
        log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
        option[:, decision], log_prob[:, decision] = choice, log_probs[schedule.rows, choice]
        choice = np.where(choice == devices, merge_device[decision], choice)
        device[:, decision] = choice
        if keep_features:
            kept_features.append(features)
        return choice

    next_decision, overflow = 0, np.zeros(count)
    for ranked_op in order.ranked_ops:
        if ranked_op.group >= 0:
            # In single precision, as features are kept, so that scores agree.
            features = source.features(schedule, ranked_op).astype(np.float32)
            schedule.place_group(ranked_op.group, decide(next_decision, features, ranked_op))
            next_decision += 1
        schedule.add_op(ranked_op)
        overflow = np.maximum(
            overflow, (schedule.used_bytes - schedule.arrays.capacity).max(axis=1)
        )
    zeros = np.zeros((count, schedule.arrays.devices, source.width), dtype=np.float32)
    for decision in range(next_decision, decisions):  # groups of unscheduled ops
        decide(decision, zeros, None)
    return Rollout(
        device,
        np.stack(kept_features) if keep_features else zeros[None, :0],
        np.stack(logit_shifts, axis=1) if logit_shifts else np.zeros(0, dtype=np.float32),
        log_prob,
        schedule.start,
        option,
        merge_device,
        schedule.end.max(axis=1),
        overflow,
    )


def _merge_devices(
    order: ScheduleOrder, schedule: BatchedSchedule, group: int, ranked_op: RankedOp | None
) -> NDArray[np.int64]:
    """Episodes: the device of a group's merge partner, -1 where it is illegal for the group."""
    op = -1 if ranked_op is None else merge_partner(order, ranked_op)
    if op < 0:
        return np.full(schedule.count, -1, dtype=np.int64)
    device = schedule.placement[:, op]
    return np.where(order.legal[group][device], device, -1).astype(np.int64)


def merge_partner(order: ScheduleOrder, ranked_op: RankedOp) -> int:
    """The scheduled source of the group's slowest transfer, or -1."""
    if not len(ranked_op.group_inputs):
        return -1
    is_scheduled = order.problem.arrays.scheduled[ranked_op.group_sources]
    seconds = np.where(is_scheduled, order.mean_transfer[ranked_op.group_inputs], -1.0)
    slowest = int(seconds.argmax())
    return int(ranked_op.group_sources[slowest]) if is_scheduled[slowest] else -1
