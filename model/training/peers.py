"""Data-parallel learners: each runs a part of the rollouts and takes a part of each minibatch.

`torchrun --standalone --nproc-per-node 2 --no-python kerf train --mode ppo ...` starts two on a machine; all end with
the same weights.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

import torch
from torch import distributed

_Item = TypeVar("_Item")


class Peers(NamedTuple):
    """Rank of this learner, and number of learners."""

    rank: int = 0
    number: int = 1

    def shard(self, items: Sequence[_Item]) -> list[_Item]:
        """Return this learner's part of a list that all have."""
        return list(items[self.rank :: self.number])

    def gather(self, own: list[_Item]) -> list[_Item]:
        """Gather the whole list from all parts."""
        if self.number == 1:
            return own
        parts: list[list[_Item]] = [[] for _ in range(self.number)]
        distributed.all_gather_object(parts, own)
        return [part[i] for i in range(len(parts[0])) for part in parts if i < len(part)]

    def all_reduce(self, tensor: torch.Tensor | None) -> None:
        """Replace a tensor by its sum over all learners."""
        if self.number > 1 and tensor is not None:
            distributed.all_reduce(tensor)


ALONE: Final = Peers()


@contextmanager
def joined() -> Iterator[Peers]:
    """Join torchrun's process group; a single learner without torchrun.

    The group is destroyed on success, because a process that exits before may abort in one of its threads. It is not
    destroyed on errors, because that may wait for peers that still work.
    """
    if "WORLD_SIZE" not in os.environ:
        yield ALONE
        return
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    yield Peers(distributed.get_rank(), distributed.get_world_size())
    distributed.destroy_process_group()
