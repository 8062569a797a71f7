"""What happens to Kerf's writes to claims on their way to the API server."""

import asyncio
from typing import Final, Protocol

from aiohttp import web

from tests.tools.chaos import hops
from tests.tools.chaos.boards import Board
from tests.tools.chaos.faults import Fault, Kind

_CLAIMS: Final = "/resourceclaims/"
_TAKEN: Final = b'{"status":{"allocation":null,"reservedFor":null}}'
"""What takes devices back, whoever has the right to: kube-scheduler does, where a pod fits nowhere."""


class Way(Protocol):
    """How calls get to the API server, or do not."""

    async def pass_on(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        """The API server's own answer."""

    async def write_late(self, request: web.BaseRequest, body: bytes, after_s: float) -> None:
        """What a process that is dead by now had sent."""

    async def lapse(self, fault: Fault, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        """The outcome is not known, and no replica can ask before the lease has run out."""

    def untrue(self, kind: Kind) -> web.Response:
        """An answer that the API server never gave."""


def writes_claim(request: web.BaseRequest) -> bool:
    """Whether a call changes a claim."""
    return request.method == "PATCH" and _CLAIMS in request.path


def allocates(request: web.BaseRequest, body: bytes) -> bool:
    """Whether a call gives a claim its devices."""
    return writes_claim(request) and b'"allocationTimestamp"' in body


async def write_claim(
    way: Way, board: Board, replica: int, request: web.BaseRequest, body: bytes
) -> web.StreamResponse:
    """A write to a claim, with all that can happen to it."""
    gives = allocates(request, body)
    if gives and (fate := await _fate(way, board, replica, request, body)):
        return fate
    if fault := board.take(Kind.CLAIM_RESET_BEFORE_WRITE):
        board.record(fault.kind)
        return hops.abort(request)
    if fault := board.take(Kind.CLAIM_CONFLICT, Kind.CLAIM_ERROR):
        return way.untrue(fault.kind)
    answer = await way.pass_on(request, body)
    if gives and answer.status == 200 and (fault := board.take(Kind.ALLOCATION_TAKEN)):
        board.record(fault.kind)
        board.touched.add(request.path.split("/")[-2])
        await way.pass_on(request, _TAKEN)
    written = Kind.KILL_ALLOCATION_WRITTEN if gives else Kind.KILL_PROTECTION_WRITTEN
    if (gives or b'"finalizers"' in body) and board.kill(written, replica):
        return hops.abort(request)
    if fault := board.take(Kind.CLAIM_RESET_AFTER_WRITE):
        board.record(fault.kind)
        return hops.abort(request)
    if fault := board.take(Kind.CLAIM_ERROR_AFTER_WRITE):
        return way.untrue(fault.kind)
    return answer


async def _fate(
    way: Way, board: Board, replica: int, request: web.BaseRequest, body: bytes
) -> web.StreamResponse | None:
    """What happens as devices leave for their claim, None where they go on."""
    if board.kill(Kind.KILL_ALLOCATION_LOST, replica):
        return hops.abort(request)
    if fault := board.kill(Kind.KILL_ALLOCATION_ASKED, replica):
        board.later(way.write_late(request, body, fault.for_s))
        return hops.abort(request)
    if fault := board.take(Kind.LAPSE_ANSWER_LOST, Kind.LAPSE_LATE_BINDING):
        return await way.lapse(fault, request, body)
    if fault := board.take(Kind.PAUSE_IN_ALLOCATION, Kind.VM_PAUSE):
        board.pause(fault, replica)
        await asyncio.sleep(fault.for_s + (0.05 if fault.late else -0.05))
    elif fault := board.take(Kind.LATE_ALLOCATION):
        board.record(fault.kind)
        await asyncio.sleep(fault.for_s)
    return None
