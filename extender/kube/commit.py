"""Writes of decisions: each takes effect once or never, and Kerf finds out which.

    prepare -> confirm the term -> check preconditions -> write on the version -> settle

A write carries the resourceVersion that its decision is based on. It is sent only after a request to the lease, sent
after that version was known, has shown that no other process led. There is no await between the last check of the
preconditions and the request. A version read after a lost response may be a successor's, and needs another request to
the lease. A new leader changes each object that may be written before it decides anything, so that late writes of its
predecessor are refused. No clock is involved.

A write without a response may take effect much later: a proxy or the API server may hold it longer than any timeout.
So Kerf seals it: changing the object reveals whether the write took effect, and makes the API server refuse it if it
still comes. If that can't be done now, the outcome is UNKNOWN, and the `Resolver` retries; until then, what the write
may allocate stays reserved.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from itertools import islice
from typing import ClassVar, Final, Generic, Protocol, TypeVar

import msgspec

from extender.kube import objects
from extender.kube.background import Background, repeat
from extender.kube.transport import ApiError, ClusterError
from extender.kube.turns import Backoffs, in_turn

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=objects.Named)

_CONFLICT: Final = 409
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_TOO_LARGE: Final = "request is too large"
_NO_RIGHT: Final = "cannot patch resource"
"""In the API server's 403 for missing RBAC rights, as opposed to one of admission."""
_TRANSIENT: Final = (401, 404, 408, _CONFLICT, _TOO_MANY)

_INTERVAL_S: Final = 0.25
_MAX_CONCURRENT: Final = 16
_MAX_PER_ROUND: Final = 256
"""Further unknown outcomes wait for the next round."""


class FencedError(Exception):
    """This process may no longer write; the message says why."""


class Term(Protocol):
    """A leader's term, as needed by writes."""

    async def confirm(self, uid: str, version: str) -> None:
        """Wait until it is certain that no other process led when this version was known. Raises FencedError."""

    async def confirm_now(self) -> None:
        """Wait until it is certain that no other process led at the time of the call. Raises FencedError."""

    def check(self, epoch: str) -> None:
        """Raises FencedError if the term of this epoch has ended."""

    def standby(self) -> str:
        """Return why another process leads, "" while this one does."""


class Outcome(Enum):
    """The outcome of a write."""

    DONE = auto()
    """It took effect."""
    REFUSED = auto()
    """It never takes effect: refused by the API server, sealed, or its preconditions failed."""
    NOT_NOW = auto()
    """The API server refused it for now: a PodDisruptionBudget, or too many requests."""
    CONFLICT = auto()
    """It never takes effect: the object had changed at every try."""
    GONE = auto()
    """The object is gone."""
    FENCED = auto()
    """Not sent: another process leads or may lead."""
    UNKNOWN = auto()
    """It may have taken effect, or still may."""


class Result(msgspec.Struct, Generic[T], frozen=True):
    """The outcome of a write, and its evidence."""

    outcome: Outcome
    found: T | None = None
    """The object afterwards, if it was read or returned."""
    error: Exception | None = None
    """Error of the API server or the fence, None if nothing was sent or all went well."""
    why: str = ""
    """The failed precondition, or why the outcome is UNKNOWN."""


class Target(ABC, Generic[T]):
    """A write on one object: how to send it, how to find out its outcome, and how to seal it."""

    tries: ClassVar[int] = 1
    """Number of attempts when the object changes concurrently."""
    conflicts_pass: ClassVar[bool] = False
    """Whether to retry a conflict although the object is unchanged, since it may concern another object."""
    seals: bool = True
    """Whether to seal it if its response is lost; not needed by a write that reserves nothing."""
    kept_on_standby: ClassVar[bool] = False
    """Whether to keep resolving its outcome on standby, when there may be no new leader."""

    def __init__(self, namespace: str, uid: str, description: str, epoch: str = "") -> None:
        """`words` describe the write in logs; `epoch` is the term in which it was decided."""
        self.namespace = namespace
        self.uid = uid
        self.description = description
        self.epoch = epoch
        self.version = ""
        """The resourceVersion of the last request, "" if none was sent."""

    async def prepare(self) -> str:
        """Prepare the write, such as by taking a lock; returns the object's new version, "" if unchanged. May raise."""
        return ""

    async def undo(self) -> None:
        """Undo `prepare` after a write that never takes effect."""

    def failed_precondition(self) -> str:
        """Return which precondition no longer holds, "" if all do. Never waits."""
        return ""

    def refusal(self, found: T) -> str:
        """Return why not to write on the object as it is now, "" to write."""
        return ""

    @abstractmethod
    async def send(self, version: str) -> T | None:
        """Send the request; returns the object if the response has it. Raises ClusterError, DecodeError."""

    @abstractmethod
    async def read(self) -> T | None:
        """Return the current object, None once it is gone. Raises ClusterError, DecodeError."""

    @abstractmethod
    async def seal(self) -> T | None:
        """Change the object so that requests with older versions are refused from now on.

        Returns the object afterwards, None if it is gone. Raises ClusterError, DecodeError; FencedError if that needs
        a term, to be retried in the next one.
        """

    @abstractmethod
    def judge(self, found: T | None, *, sealed: bool) -> Outcome | None:
        """Return the outcome shown by the object (None: gone): DONE; GONE; REFUSED if another write has superseded it
        for good; None if it has not taken effect. `sealed`: whether it no longer can."""

    def is_settled(self) -> bool:
        """Whether the outcome is already known from elsewhere."""
        return False

    @abstractmethod
    def settle(self, result: Result[T]) -> None:
        """Take in the outcome; called again when an UNKNOWN outcome becomes known."""


def is_permanent_refusal(error: Exception) -> bool:
    """Whether the API server refuses this change for good, so that a retry would fail in the same way."""
    if not isinstance(error, ApiError):
        return False
    if error.status >= _SERVER_ERROR:
        return _TOO_LARGE in error.message
    return error.status not in _TRANSIENT and not (error.status == 403 and _NO_RIGHT in error.message)


async def commit(target: Target[T], term: Term | None, *, version: str = "") -> Result[T]:
    """Write on an object's known version, or its current one, and return the outcome after `target.settle`.

    Without a term no leadership is required. Raises what `Target.prepare` raises, before anything is sent. If
    cancelled after sending, the outcome is UNKNOWN.
    """
    result: Result[T] = Result(Outcome.REFUSED, why="cancelled")
    try:
        prepared = await target.prepare()
        result = Result(Outcome.UNKNOWN, why="cancelled")
        result = await _write(target, term, prepared or version, is_new=bool(prepared))
    finally:
        if result.outcome is Outcome.UNKNOWN and not target.version:
            result = Result(Outcome.REFUSED, why=result.why)  # nothing was sent
        target.settle(result)
    if result.outcome not in (Outcome.DONE, Outcome.UNKNOWN):
        await target.undo()
    return result


async def _write(target: Target[T], term: Term | None, version: str, *, is_new: bool) -> Result[T]:
    """`is_new`: whether the version became known only now, after the term."""
    if not version:
        try:
            found = await target.read()
        except (ClusterError, msgspec.DecodeError) as error:
            return Result(Outcome.REFUSED, error=error)
        if found is None:
            return Result(Outcome.GONE)
        if why := target.refusal(found):
            return Result(Outcome.REFUSED, found, why=why)
        version, is_new = found.metadata.resource_version, True
    result: Result[T] = Result(Outcome.CONFLICT)
    for left in reversed(range(target.tries)):
        if term is not None:
            try:
                await (term.confirm_now() if is_new else term.confirm(target.uid, version))
                term.check(target.epoch)
            except FencedError as error:
                return Result(Outcome.FENCED, error=error)
        if why := target.failed_precondition():
            return Result(Outcome.REFUSED, why=why)
        target.version = version
        try:
            return Result(Outcome.DONE, await target.send(version))
        except (ClusterError, msgspec.DecodeError) as error:
            result = await _find_out(target, error)
        if result.outcome is not Outcome.CONFLICT or result.found is None or not left:
            return result
        now = result.found.metadata.resource_version
        if now == version and not target.conflicts_pass:
            return result
        if why := target.refusal(result.found):
            return Result(Outcome.REFUSED, result.found, why=why)
        version, is_new = now, True
    return result


async def _find_out(target: Target[T], error: Exception) -> Result[T]:
    """Find out the outcome of a failed request; CONFLICT if the write may be retried on the current object."""
    status = error.status if isinstance(error, ApiError) else 0
    conflict = status == _CONFLICT
    if status and not conflict and status < _SERVER_ERROR:
        return Result(Outcome.NOT_NOW if status == _TOO_MANY else Outcome.REFUSED, error=error)
    sealed = target.seals and not conflict
    try:
        found = await (target.seal() if sealed else target.read())
    except (ClusterError, msgspec.DecodeError) as read_error:
        return Result(Outcome.UNKNOWN, error=error, why=str(read_error))
    otherwise = Outcome.CONFLICT if conflict else Outcome.REFUSED if sealed else Outcome.UNKNOWN
    return Result(target.judge(found, sealed=sealed) or otherwise, found, error)


class Resolver(Background):
    """Resolves UNKNOWN outcomes in the background, from `start` to `stop`.

    On standby it only reads: once an object's version differs from that of a write, the write can't take effect.
    """

    def __init__(self, term: Term, clock: Callable[[], float]) -> None:
        super().__init__("resolver")
        self._term = term
        self._clock = clock
        self._unknown: dict[Target[objects.Named], None] = {}  # in order of arrival
        self._pauses = Backoffs()
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    def add(self, target: Target[T]) -> None:
        """Resolve a write whose outcome is UNKNOWN, then settle it."""
        self._unknown[target] = None  # type: ignore[index]

    async def run(self) -> None:
        await repeat(self.resolve_round, _INTERVAL_S, "resolving unknown outcomes")

    async def resolve_round(self) -> None:
        """Try to resolve each unknown outcome, namespaces in turn."""
        now, pauses = self._clock(), self._pauses
        due = [target for target in self._unknown if pauses.why(target.namespace, target.uid, now) is None]
        turns = in_turn(due, lambda target: target.namespace)
        await asyncio.gather(*(self._try(target) for target in islice(turns, _MAX_PER_ROUND)))

    async def _try(self, target: Target[T]) -> None:
        async with self._slots:
            try:
                result = await self._resolve(target)
            except FencedError:
                return  # resolved in the next term, or from elsewhere
            except (ClusterError, msgspec.DecodeError) as error:
                self._pauses.failed(target.namespace, target.uid, error, self._clock())
                logger.warning("%s: outcome not known yet: %s", target.description, error)
                return
            except Exception:
                logger.exception("%s: failed to resolve the outcome", target.description)
                return
            self._pauses.succeeded(target.namespace, target.uid)
            if result is not None and result.outcome is Outcome.UNKNOWN:
                return
            if target in self._unknown:
                del self._unknown[target]  # type: ignore[arg-type]
                if result is not None:
                    target.settle(result)

    async def _resolve(self, target: Target[T]) -> Result[T] | None:
        """Return the outcome, None if already known from elsewhere. Raises ClusterError, DecodeError."""
        if target.is_settled():
            return None
        standby = self._term.standby()
        if standby and not target.kept_on_standby:
            return Result(Outcome.FENCED, why=standby)
        found, error = await self._seal_or_read(target, seal=not standby)
        if target.is_settled():
            return None
        late = found is not None and found.metadata.resource_version == target.version  # it may still take effect
        outcome = target.judge(found, sealed=not late) or (Outcome.UNKNOWN if late else Outcome.REFUSED)
        if outcome is Outcome.UNKNOWN and error is not None:
            raise error
        return Result(outcome, found)

    @staticmethod
    async def _seal_or_read(target: Target[T], *, seal: bool) -> tuple[T | None, ApiError | None]:
        """Return the object, sealed if allowed and possible, and the error if it can't be sealed."""
        if not seal:
            return await target.read(), None
        try:
            return await target.seal(), None
        except ApiError as error:
            if not is_permanent_refusal(error):
                raise
            return await target.read(), error
