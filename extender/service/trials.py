"""What-if questions, answered beside the loop: in a process of its own, one at a time, for so long and no longer.

Whoever may read may ask, and a question may be as large as a body. The loop, which filter and the lease wait for,
hands bytes on and decodes nothing of it.
"""

import asyncio
import contextlib
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from extender.cluster.ledger import Ledger
from extender.cluster.listings import Lister
from extender.cluster.mirrors import NODES_PATH, PODS_PATH, Mirror
from extender.cluster.transports import ClusterError, Query, Transport
from extender.core.policies import Policy
from extender.service.trial_plans import FAULT, LENGTH_BYTES, Facts, Needs, TrialError

_MAX_WAITING: Final = 4
_END_S: Final = 2.0

_needs_decoder: Final = msgspec.json.Decoder(Needs)


class BusyError(Exception):
    """No answer now; says why."""


class Trials:
    """Answers what-if questions."""

    def __init__(
        self,
        transport: Transport,
        ledger: Ledger,
        mirror: Mirror,
        clock: Callable[[], float],
        default_policy: str,
        policies: Callable[[], Mapping[str, Policy]] = dict,
        max_s: float = 60.0,
    ) -> None:
        """`policies` are the configured ones for use elsewhere; `max_s` is the time for an answer."""
        self._transport = transport
        self._ledger = ledger
        self._mirror = mirror
        self._clock = clock
        self._policy = default_policy
        self._policies = policies
        self._max_s = max_s
        self._busy = asyncio.Lock()
        self._num_waiting = 0

    async def answer(self, body: bytes) -> bytes:
        """Where the pods would go, as JSON. Raises TrialError, BusyError, ClusterError."""
        if self._num_waiting >= _MAX_WAITING:
            raise BusyError(f"{_MAX_WAITING} questions wait for their turn: try again later")
        self._num_waiting += 1
        try:
            async with self._busy, asyncio.timeout(self._max_s):
                return await self._answer(body)
        except TimeoutError:
            raise BusyError(f"no answer within {self._max_s:g} s (setting access.what_if_s)") from None
        finally:
            self._num_waiting -= 1

    async def _answer(self, body: bytes) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "extender.service.trial_plans"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            needs = _needs_decoder.decode(await _exchange(process, body))
            facts = await self._facts(needs)
            return await _exchange(process, pickle.dumps(facts, pickle.HIGHEST_PROTOCOL))
        except (OSError, EOFError) as error:
            raise BusyError("the question took more than it may, or its process was ended") from error
        finally:
            await _end(process)

    async def _facts(self, needs: Needs) -> Facts:
        nodes = await self._list(NODES_PATH, {})
        known = self._ledger.snapshot(self._clock()).row_of
        drained = [name for name in needs.drain if name in known]
        pods_on = {name: await self._list(PODS_PATH, {"fieldSelector": f"spec.nodeName={name}"}) for name in drained}
        # What follows sees one moment: no await in between.
        cluster = self._ledger.snapshot(self._clock())
        num_pods = {name: len(self._mirror.tenants.on(name)) for name in cluster.row_of}
        # Only what ranks nodes: the rest are functions, which can't be sent.
        policies = {name: replace(policy, apart=None, terms=None) for name, policy in self._policies().items()}
        ledger = self._ledger.apart(self._clock()) if needs.adds else None
        return Facts(nodes, pods_on, cluster, ledger, num_pods, self._policy, policies)

    async def _list(self, path: str, query: Query) -> bytes:
        """A list of the API server, its objects as they come. Raises ClusterError."""
        try:
            found = await Lister(self._transport, path, msgspec.Raw, query).all()
        except msgspec.DecodeError as error:
            raise ClusterError(f"{path} can't be read: {error}") from None
        return b'{"items":[%b]}' % b",".join(map(bytes, found.items))


async def _exchange(process: asyncio.subprocess.Process, content: bytes) -> bytes:
    """Send something to the process, and take what it answers. Raises TrialError, OSError, EOFError."""
    if process.stdin is None or process.stdout is None:
        raise EOFError("no pipes")
    process.stdin.write(len(content).to_bytes(LENGTH_BYTES, "big") + content)
    await process.stdin.drain()
    told = await process.stdout.readexactly(int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big"))
    if told.startswith(FAULT):
        raise TrialError(told[1:].decode(errors="replace"))
    return told[1:]


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.communicate(), _END_S)  # its pipes are closed once they are read to the end
