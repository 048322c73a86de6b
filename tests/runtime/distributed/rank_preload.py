"""What the server of rank processes imports and captures once, for all processes that it forks."""

from __future__ import annotations

import warnings

import torch
from rank_jobs import KINDS, program_of

import placewright.runtime.distributed.rank_model  # noqa: F401

torch.set_num_threads(1)  # no thread pool may exist when processes are forked
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for kind in KINDS:
        program_of(kind)
