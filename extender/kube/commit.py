"""How Kerf writes what it has decided: each write takes effect once or never, and it is known which.

    prepare -> confirm the term -> what it rests on stands -> write on the version -> settle

A write carries the resourceVersion of the object that it was decided on. It is sent only after a request to the lease,
sent later than that version was known, has shown that nobody else led, and there is no await between the last look at
what it rests on and the sending. A version that was read because an answer was lost may be a successor's: it takes
another such request. Whoever leads next changes each object that may be written on before deciding anything, so that
what a leader before it has sent and comes late is refused: no clock has a part in this.

A write without an answer may take effect at any later time: it can stay on its way, in a proxy or in the API server,
for longer than any time-out here. So its object is changed, which tells what became of the write, and from then on the
API server refuses it (sealing). Where that can't be done now, the outcome is UNKNOWN, and the `Resolver` tries it again
until it is known; until then what the write may give away is held.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import ClassVar, Final, Generic, Protocol, TypeVar

import msgspec

from extender.kube import objects
from extender.kube.background import Background, repeat
from extender.kube.transport import ApiError, ClusterError
from extender.kube.turns import Pauses, in_turn

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=objects.Named)

_CONFLICT: Final = 409
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_TOO_LARGE: Final = "request is too large"
_NO_RIGHT: Final = "cannot patch resource"
"""What the API server says, with 403, of a user who may not; admission has other words."""
_PASSING: Final = (401, 404, 408, _CONFLICT, _TOO_MANY)

_INTERVAL_S: Final = 0.25
_MAX_CONCURRENT: Final = 16
_MAX_A_ROUND: Final = 256
"""What has become unknown meanwhile waits for the next one."""


class FencedError(Exception):
    """This process may not write any more; says why."""


class Term(Protocol):
    """The term of a leader, as a write sees it."""

    async def confirm(self, uid: str, version: str) -> None:
        """Wait until it is certain that nobody else led when this version was known. Raises FencedError."""

    async def confirm_now(self) -> None:
        """Wait until it is certain that nobody else led when this was called. Raises FencedError."""

    def check(self, epoch: str) -> None:
        """Raises FencedError where the term of this epoch has ended."""

    def standby(self) -> str:
        """Why another process leads, "" while this one does."""


class Outcome(Enum):
    """What became of a write."""

    DONE = auto()
    """It has taken effect."""
    REFUSED = auto()
    """It has not and never will: the API server refused it or was made to, or what it rests on does not stand."""
    NOT_NOW = auto()
    """The API server refused it for now: a PodDisruptionBudget, or too many requests."""
    CONFLICT = auto()
    """It has not and never will: the object was changed before, each time that it was tried."""
    GONE = auto()
    """The object is gone."""
    FENCED = auto()
    """Not sent: another process leads, or may."""
    UNKNOWN = auto()
    """It may have taken effect, or may yet."""


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """What became of a write, and how that is known."""

    outcome: Outcome
    found: T | None = None
    """The object after that, as far as it was read or answered."""
    error: Exception | None = None
    """What the API server or the fence said, None where nothing was sent or all went well."""
    why: str = ""
    """Why what it rests on does not stand; where nobody knows what became of it, why that could not be found out."""


class Target(ABC, Generic[T]):
    """A write of one kind on one object: what is sent, what the object says of it, how a late one is made to fail."""

    tries: ClassVar[int] = 1
    """How often it is sent where the object changes under its hands."""
    conflicts_pass: ClassVar[bool] = False
    """Whether a conflict may be of something else than the object, which is as it was: then it is sent again, too."""
    seals: bool = True
    """Whether it is made to fail where its answer is lost: what holds nothing needs no certainty."""
    kept_on_standby: ClassVar[bool] = False
    """Whether a process that leads no more keeps finding out what became of it: nobody may have taken over."""

    def __init__(self, namespace: str, uid: str, words: str, epoch: str = "") -> None:
        """Of the object; `words` say what is written, for the log; `epoch` is that of the term it was decided in."""
        self.namespace = namespace
        self.uid = uid
        self.words = words
        self.epoch = epoch
        self.version = ""
        """The resourceVersion that the last request carried, "" where none was sent."""

    async def prepare(self) -> str:
        """Make ready to write, as by a lock; the version that the object has by that, "" where it is as it was. Raises
        what keeps it from being written."""
        return ""

    async def undo(self) -> None:
        """Take back what `prepare` has done: it has not taken effect, and never will."""

    def stands(self) -> str:
        """Why what it rests on does not stand any more, "" where it does. Never waits."""
        return ""

    def accepts(self, found: T) -> str:
        """Why it is not to be written on the object as it is now, "" where it is."""
        return ""

    @abstractmethod
    async def send(self, version: str) -> T | None:
        """Send it; the object as answered, None where that is not told. Raises ClusterError, DecodeError."""

    @abstractmethod
    async def read(self) -> T | None:
        """The object as it is, None once it is gone. Raises ClusterError, DecodeError."""

    @abstractmethod
    async def seal(self) -> T | None:
        """Change the object so that no request with an older version takes effect any more, unless one has; the object
        after that, None where it is gone. Raises ClusterError, DecodeError; FencedError where that takes a term, which
        waits for the next one."""

    @abstractmethod
    def judge(self, found: T | None, *, sealed: bool) -> Outcome | None:
        """What the object, None where it is gone, says of the write: DONE; GONE; REFUSED where something else has taken
        its place for good; None where it has not taken effect. `sealed` tells whether it can't any more."""

    def is_told(self) -> bool:
        """Whether what became of it is known by now from elsewhere."""
        return False

    @abstractmethod
    def settle(self, result: Result[T]) -> None:
        """Take in what became of it: at once, and once more when an UNKNOWN outcome is known."""


def refused(error: Exception) -> bool:
    """Whether an object can't be changed as it is: to try again would end in the same way, for reasons of its own."""
    if not isinstance(error, ApiError):
        return False
    if error.status >= _SERVER_ERROR:
        return _TOO_LARGE in error.message
    return error.status not in _PASSING and not (error.status == 403 and _NO_RIGHT in error.message)


async def commit(target: Target[T], term: Term | None, *, version: str = "") -> Result[T]:
    """Write on an object, on the version that is known of it or as it is now; what became of that, once `target` has
    taken it in. Without a term it may be written by anybody.

    Raises what `Target.prepare` does; then nothing was sent. What is cancelled once it was sent is UNKNOWN.
    """
    result: Result[T] = Result(Outcome.REFUSED, why="it was given up")
    try:
        prepared = await target.prepare()
        result = Result(Outcome.UNKNOWN, why="it was given up")
        result = await _write(target, term, prepared or version, is_new=bool(prepared))
    finally:
        if result.outcome is Outcome.UNKNOWN and not target.version:
            result = Result(Outcome.REFUSED, why=result.why)  # nothing was sent
        target.settle(result)
    if result.outcome not in (Outcome.DONE, Outcome.UNKNOWN):
        await target.undo()
    return result


async def _write(target: Target[T], term: Term | None, version: str, *, is_new: bool) -> Result[T]:
    """`is_new`: whether the version came to be known only now, and not as the term was."""
    if not version:
        try:
            found = await target.read()
        except (ClusterError, msgspec.DecodeError) as error:
            return Result(Outcome.REFUSED, error=error)
        if found is None:
            return Result(Outcome.GONE)
        if why := target.accepts(found):
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
        if why := target.stands():
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
        if why := target.accepts(result.found):
            return Result(Outcome.REFUSED, result.found, why=why)
        version, is_new = now, True
    return result


async def _find_out(target: Target[T], error: Exception) -> Result[T]:
    """What became of a write that was not answered well; CONFLICT where the object as it is now may be written on."""
    status = error.status if isinstance(error, ApiError) else 0
    conflict = status == _CONFLICT
    if status and not conflict and status < _SERVER_ERROR:
        return Result(Outcome.NOT_NOW if status == _TOO_MANY else Outcome.REFUSED, error=error)
    sealed = target.seals and not conflict
    try:
        found = await (target.seal() if sealed else target.read())
    except (ClusterError, msgspec.DecodeError) as doubt:
        return Result(Outcome.UNKNOWN, error=error, why=str(doubt))
    otherwise = Outcome.CONFLICT if conflict else Outcome.REFUSED if sealed else Outcome.UNKNOWN
    return Result(target.judge(found, sealed=sealed) or otherwise, found, error)


class Resolver(Background):
    """Finds out in the background what became of writes whose outcome is UNKNOWN, from `start` to `stop`.

    Who stands by writes nothing, and reads: an object that has another version by now than a write carries, since a
    successor has changed it or for any other reason, can't be written on by that any more.
    """

    def __init__(self, term: Term, clock: Callable[[], float]) -> None:
        super().__init__("settler")
        self._term = term
        self._clock = clock
        self._unknown: dict[Target[objects.Named], None] = {}  # in the order in which they came
        self._pauses = Pauses()
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    def add(self, target: Target[T]) -> None:
        """A write may have taken effect, or may yet: it is settled once that is known."""
        self._unknown[target] = None  # type: ignore[index]

    async def run(self) -> None:
        await repeat(self.resolve_round, _INTERVAL_S, "a round of settling")

    async def resolve_round(self) -> None:
        """Settle what can be settled now; namespaces in turn."""
        now, pauses = self._clock(), self._pauses
        due = [target for target in self._unknown if pauses.why(target.namespace, target.uid, now) is None]
        turns = in_turn(due, lambda target: target.namespace)
        await asyncio.gather(*(self._try(target) for target in islice(turns, _MAX_A_ROUND)))

    async def _try(self, target: Target[T]) -> None:
        async with self._slots:
            try:
                result = await self._resolve(target)
            except FencedError:
                return  # it is found out in the next term, or told
            except (ClusterError, msgspec.DecodeError) as error:
                self._pauses.failed(target.namespace, target.uid, error, self._clock())
                logger.warning("%s: what became of it is not known yet: %s", target.words, error)
                return
            except Exception:
                logger.exception("%s: could not find out what became of it", target.words)
                return
            self._pauses.succeeded(target.namespace, target.uid)
            if result is not None and result.outcome is Outcome.UNKNOWN:
                return
            if target in self._unknown:
                del self._unknown[target]  # type: ignore[arg-type]
                if result is not None:
                    target.settle(result)

    async def _resolve(self, target: Target[T]) -> Result[T] | None:
        """What became of a write, None where that was told. Raises ClusterError, DecodeError."""
        if target.is_told():
            return None
        standby = self._term.standby()
        if standby and not target.kept_on_standby:
            return Result(Outcome.FENCED, why=standby)
        found, error = await self._ask(target, seal=not standby)
        if target.is_told():
            return None
        late = found is not None and found.metadata.resource_version == target.version  # it may take effect yet
        outcome = target.judge(found, sealed=not late) or (Outcome.UNKNOWN if late else Outcome.REFUSED)
        if outcome is Outcome.UNKNOWN and error is not None:
            raise error
        return Result(outcome, found)

    @staticmethod
    async def _ask(target: Target[T], *, seal: bool) -> tuple[T | None, ApiError | None]:
        """The object after it was changed, or as it is where it must not or can't be changed, and why it can't."""
        if not seal:
            return await target.read(), None
        try:
            return await target.seal(), None
        except ApiError as error:
            if not refused(error):
                raise
            return await target.read(), error
