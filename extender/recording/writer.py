"""The folder of a running Kerf's history: lines are appended to a journal, and columns made of journals aside."""

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from extender.children import Child
from extender.history import files, journals
from extender.settings.operation import HistorySettings

logger = logging.getLogger(__name__)

_MOST_ROLL_S: Final = 900.0
_JOURNAL_FRAC: Final = 0.125
"""Of the room for pods: a journal that takes more is made columns of before it is time."""
_SALT_BYTES: Final = 32
_MAX_WORDS: Final = 300


class Writer:
    """Writes to a folder, which it makes."""

    def __init__(self, directory: Path, wanted: HistorySettings, wall_clock: Callable[[], float]) -> None:
        self.directory, self._wanted, self._wall_clock = directory, wanted, wall_clock
        self._faults: dict[str, str] = {}
        """Why nothing is written, no columns are made, or names can't be hashed."""
        self.num_written = 0
        """Lines since the start."""
        self.num_lost = 0
        """Lines lost for want of room."""
        self.num_rolls = 0
        """Times that columns were made."""
        self.num_bytes = 0
        """What the folder took when it was written to last."""
        self.anew = True
        """Whether the next lines begin another journal."""
        self._rolled_at = 0.0
        self._journal, self._journal_bytes = self.directory, 0
        self._cut = b""

    @property
    def fault(self) -> str:
        """What is wrong, "" for nothing."""
        return next(iter(self._faults.values()), "")

    def begin(self) -> None:
        """From now on another journal is written to, which comes after those that there are, whatever the clock says.

        Not for the event loop, as all that looks at the folder: a volume may hang.
        """
        last = max((path.name for path in self.directory.glob(journals.PATTERN)), default="")
        at = self._wall_clock()
        with contextlib.suppress(ValueError):
            at = max(at, float(last.split("-")[1]) + 0.001 if last else 0.0)
        name = f"journal-{at:017.3f}-{secrets.token_hex(4)}.jsonl"
        self._journal, self._journal_bytes, self.anew = self.directory / name, 0, False

    def salt(self) -> bytes | None:
        """The key that names are hashed with, made the first time; None where they are not. Raises OSError."""
        if not self._wanted.hash_names:
            return None
        path = self.directory / files.SALT
        if not path.exists() or path.stat().st_size != _SALT_BYTES:  # or cut short by a crash: it kept no secret
            self.directory.mkdir(parents=True, exist_ok=True)
            made = self.directory / f"{files.SALT}-{secrets.token_hex(4)}"
            made.touch(mode=0o600)
            made.write_bytes(secrets.token_bytes(_SALT_BYTES))
            made.replace(path)
        self._faults.pop("salt", None)
        return path.read_bytes()

    def write(self, lines: Sequence[bytes]) -> bool:
        """Append lines; whether they are on disk. Those that are not are lost."""
        if not lines:
            return True
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if self.anew:
                self.begin()
            with self._journal.open("ab") as journal:
                journal.write(self._cut + b"\n".join((*lines, b"")))
                journal.flush()
                os.fsync(journal.fileno())
        except OSError as error:
            self._cut = b"\n"  # what is there may end within a line
            self.num_lost += len(lines)
            self.complain("write", f"nothing is written to {self.directory}: {error.strerror}")
            return False
        self._cut = b""
        self._faults.pop("write", None)
        self.num_written += len(lines)
        self._journal_bytes += sum(map(len, lines)) + len(lines)
        self.num_bytes = self._size()
        return True

    @property
    def due(self) -> bool:
        """Whether it is time to make columns."""
        since_s = self._wall_clock() - self._rolled_at
        return not 0 <= since_s < self._wanted.roll_s or self._journal_bytes > _JOURNAL_FRAC * self._max_bytes

    @property
    def overflows(self) -> bool:
        """Whether a journal takes all the room that there is for pods."""
        return self._journal_bytes > self._max_bytes

    async def roll(self) -> bool:
        """Have columns made of all journals before the one that is begun; whether something was lost by it."""
        self._rolled_at = self._wall_clock()
        told = b""
        try:
            child = await Child.start(
                sys.executable,
                "-m",
                "extender.history.rolling",
                str(self.directory),
                str(self._max_bytes),
                self._journal.name,
                complaints=True,
            )
            try:
                async with asyncio.timeout(_MOST_ROLL_S):
                    code, told, complaint = await child.finished()
            finally:
                await child.end()
        except (OSError, TimeoutError) as error:
            code, complaint = 1, str(error) or "it takes too long"
        if told:
            logger.error("history: set aside, since it can't be read: %s", told.decode(errors="replace").strip())
        if code == 0:
            self.num_rolls += 1
            self._faults.pop("roll", None)
        else:
            self.complain("roll", f"no columns are made of what was written: {complaint.strip()[-_MAX_WORDS:]}")
            await asyncio.to_thread(self._bound_journals)
        return bool(told)

    def give_up(self) -> None:
        """Begin another journal; the oldest go where they take all the room."""
        self.begin()
        self._bound_journals()

    def complain(self, what: str, fault: str) -> None:
        """Say once what is wrong."""
        if fault != self._faults.get(what):
            logger.warning("history: %s", fault)
        self._faults[what] = fault

    def _size(self) -> int:
        total = 0
        with contextlib.suppress(OSError):
            total = sum(path.stat().st_size for path in self.directory.iterdir())
        return total

    @property
    def _max_bytes(self) -> int:
        return self._wanted.max_mib * 2**20

    def _bound_journals(self) -> None:
        """Delete the oldest journals where they take all the room."""
        with contextlib.suppress(OSError):
            total = 0
            for path in sorted(self.directory.glob(journals.PATTERN), reverse=True):
                total += path.stat().st_size
                if total > self._max_bytes:
                    self.num_lost += path.read_bytes().count(b"\n")
                    path.unlink()
