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
        self.fault = ""
        """Why nothing is written, or no columns are made."""
        self.num_written = 0
        """Lines since the start."""
        self.num_lost = 0
        """Lines lost for want of room."""
        self.num_rolls = 0
        """Times that columns were made."""
        self._rolled_at = 0.0
        self.begin()

    def begin(self) -> None:
        """From now on another journal is written to."""
        name = f"journal-{self._wall_clock():017.3f}-{secrets.token_hex(4)}.jsonl"
        self._journal, self._journal_bytes = self.directory / name, 0

    def salt(self) -> bytes | None:
        """The key that names are hashed with, made the first time; None where they are not. Raises OSError."""
        if not self._wanted.hash_names:
            return None
        path = self.directory / files.SALT
        if not path.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_bytes(secrets.token_bytes(_SALT_BYTES))
        return path.read_bytes()

    def write(self, lines: Sequence[bytes]) -> bool:
        """Append lines; whether they are on disk. Those that are not are lost."""
        if not lines:
            return True
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with self._journal.open("ab") as journal:
                journal.write(b"\n".join((*lines, b"")))
                journal.flush()
                os.fsync(journal.fileno())
        except OSError as error:
            self.num_lost += len(lines)
            self.complain(f"nothing is written to {self.directory}: {error.strerror}")
            return False
        self.num_written += len(lines)
        self._journal_bytes += sum(map(len, lines))
        return True

    @property
    def due(self) -> bool:
        """Whether it is time to make columns."""
        since_s = self._wall_clock() - self._rolled_at
        return since_s >= self._wanted.roll_s or self._journal_bytes > _JOURNAL_FRAC * self._max_bytes

    async def roll(self) -> None:
        """Have columns made of all journals but the one that is begun."""
        self._rolled_at = self._wall_clock()
        asked = str(self.directory), str(self._max_bytes), self._journal.name
        try:
            child = await Child.start(sys.executable, "-m", "extender.history.rolling", *asked, complaints=True)
            try:
                async with asyncio.timeout(_MOST_ROLL_S):
                    code, _, complaint = await child.finished()
            finally:
                await child.end()
        except (OSError, TimeoutError) as error:
            code, complaint = 1, str(error) or "it takes too long"
        if code == 0:
            self.num_rolls += 1
            self.fault = ""
            return
        self.complain(f"no columns are made of what was written: {complaint.strip()[-_MAX_WORDS:]}")
        await asyncio.to_thread(self._give_up)

    def complain(self, fault: str) -> None:
        """Say once what is wrong."""
        if fault != self.fault:
            logger.warning("history: %s", fault)
        self.fault = fault

    def num_bytes(self) -> int:
        """What the folder takes."""
        total = 0
        with contextlib.suppress(OSError):
            total = sum(path.stat().st_size for path in self.directory.iterdir())
        return total

    @property
    def _max_bytes(self) -> int:
        return self._wanted.max_mib * 2**20

    def _give_up(self) -> None:
        """Delete the oldest journals where nobody makes columns of them and they take all the room."""
        with contextlib.suppress(OSError):
            total = 0
            for path in sorted(self.directory.glob(journals.PATTERN), reverse=True):
                total += path.stat().st_size
                if total > self._max_bytes:
                    self.num_lost += path.read_bytes().count(b"\n")
                    path.unlink()
