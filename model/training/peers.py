"""Learners that learn as one: each plays a part of the episodes and takes a part of each minibatch.

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
    """Who learns together."""

    rank: int = 0
    number: int = 1

    def own(self, items: Sequence[_Item]) -> list[_Item]:
        """This learner's part of a list that all have."""
        return list(items[self.rank :: self.number])

    def gathered(self, own: list[_Item]) -> list[_Item]:
        """The whole list, from the part of each."""
        if self.number == 1:
            return own
        parts: list[list[_Item]] = [[] for _ in range(self.number)]
        distributed.all_gather_object(parts, own)
        return [part[i] for i in range(len(parts[0])) for part in parts if i < len(part)]

    def add_up(self, tensor: torch.Tensor | None) -> None:
        """Replace a tensor by its sum over all learners."""
        if self.number > 1 and tensor is not None:
            distributed.all_reduce(tensor)


ALONE: Final = Peers()


@contextmanager
def joined() -> Iterator[Peers]:
    """The peers that torchrun started this process with; alone without it.

    They are left when the work is done: a process that ends with its group standing may abort in a thread of the
    group's. After a fault they are not, since leaving may wait for peers that are still at work.
    """
    if "WORLD_SIZE" not in os.environ:
        yield ALONE
        return
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    yield Peers(distributed.get_rank(), distributed.get_world_size())
    distributed.destroy_process_group()
