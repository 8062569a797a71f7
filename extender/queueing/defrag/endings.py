"""Writing down that a plan has ended, again until it is: else whoever leads next keeps its places."""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from extender.kube.client import ApiError, ClusterError
from extender.kube.commit import FencedError
from extender.queueing.defrag.record import Record, Records
from extender.scheduling.fence import Fence

NOT_TO_BE_HAD: Final = (403, 404, 422)
"""Answers about a ConfigMap that is not there, or that Kerf may not use."""


@dataclass(eq=False)
class Ending:
    """The last plan, as long as its end is yet to be written down."""

    records: Records
    fence: Fence
    record: Record | None = field(default=None, init=False)

    async def write(self) -> Exception | None:
        """Try it, once; why it is not written down, None where it is or nothing is to be."""
        record, self.record = self.record, None
        if record is None:
            return None
        try:
            await self.records.write(record)
        except (ClusterError, msgspec.DecodeError) as error:
            gone = isinstance(error, ApiError) and error.status in NOT_TO_BE_HAD
            if not gone and await self._is_last(record):
                self.record = record
            return error
        return None

    async def _is_last(self, record: Record) -> bool:
        """Whether a plan may still be the one that is written down, as under way.

        Where a Lease has only lapsed for a moment, this process leads on without a take-over. Then nothing is read: a
        version that is known is one that may be written over.
        """
        try:
            await self.fence.confirm_now()
            found = await self.records.read()
        except (FencedError, ClusterError):
            return True
        return found is not None and found.id == record.id and found.phase.active
