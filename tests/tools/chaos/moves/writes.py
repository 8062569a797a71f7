"""What happens to Kerf's evictions, and to what it writes down of moves, on their way to the API server."""

import asyncio
from typing import Final

from aiohttp import web

from tests.tools.chaos import hops
from tests.tools.chaos.boards import Board
from tests.tools.chaos.devices.writes import Way
from tests.tools.chaos.faults import Kind

_EVICTION: Final = "/eviction"
_RECORD: Final = "/configmaps/"


def moves(request: web.BaseRequest) -> bool:
    """Whether a call evicts a pod, or writes down what is under way."""
    return (request.method == "POST" and request.path.endswith(_EVICTION)) or (
        request.method == "PATCH" and _RECORD in request.path
    )


async def write(way: Way, board: Board, replica: int, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
    """Such a call, with all that can happen to it."""
    if request.path.endswith(_EVICTION):
        return await _evict(way, board, replica, request, body)
    if board.kill(Kind.KILL_RECORD_LOST, replica):
        return hops.abort(request)
    if fault := board.take(Kind.RECORD_CONFLICT, Kind.RECORD_ERROR):
        return way.untrue(fault.kind)
    answer = await way.pass_on(request, body)
    if board.kill(Kind.KILL_RECORD_WRITTEN, replica):
        return hops.abort(request)
    if fault := board.take(Kind.RECORD_RESET_AFTER_WRITE):
        board.record(fault.kind)
        return hops.abort(request)
    return answer


async def _evict(way: Way, board: Board, replica: int, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
    if board.kill(Kind.KILL_EVICTION_LOST, replica):
        return hops.abort(request)
    if fault := board.kill(Kind.KILL_EVICTION_ASKED, replica):
        board.later(way.write_late(request, body, fault.for_s))
        return hops.abort(request)
    if fault := board.take(Kind.PAUSE_IN_EVICTION):
        board.pause(fault, replica)
        await asyncio.sleep(fault.for_s + (0.05 if fault.late else -0.05))
    elif fault := board.take(Kind.LATE_EVICTION):
        board.record(fault.kind)
        await asyncio.sleep(fault.for_s)
    elif fault := board.take(Kind.EVICTION_RESET_BEFORE_WRITE):
        board.record(fault.kind)
        return hops.abort(request)
    elif fault := board.take(Kind.EVICTION_ERROR):
        return way.untrue(fault.kind)
    answer = await way.pass_on(request, body)
    if answer.status >= 400:  # a budget has refused it: what happens after an eviction waits for one
        return answer
    if board.kill(Kind.KILL_EVICTION_WRITTEN, replica):
        return hops.abort(request)
    if fault := board.take(Kind.EVICTION_RESET_AFTER_WRITE):
        board.record(fault.kind)
        return hops.abort(request)
    if fault := board.take(Kind.EVICTION_ERROR_AFTER_WRITE):
        return way.untrue(fault.kind)
    return answer
