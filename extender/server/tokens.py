"""Tokens that open the API for readers: a file of them, read again when it changes."""

import hashlib
import hmac
import logging
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_MIN_BYTES: Final = 16
_MAX_BYTES: Final = 1 << 20

_Stamp = tuple[int, int, int]


class TokenError(Exception):
    """A file that no tokens can be taken from; the sentence says what would be right, and holds nothing of the file."""


class Tokens:
    """The tokens of a file, one a line. Where it can't be read any more, none is good."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: _Stamp | None = None
        self._digests: list[bytes] = []
        self._fault = ""

    def load(self) -> None:
        """Read the file. Raises TokenError."""
        self._stamp, self._digests = None, []
        try:
            state = self._path.stat()
            lines = self._path.read_bytes()[: _MAX_BYTES + 1].splitlines() if state.st_size <= _MAX_BYTES else None
        except OSError as error:
            raise TokenError(f"{self._path}: {error.strerror}; write one token a line into it") from None
        if lines is None:
            raise TokenError(f"{self._path}: larger than 1 MiB; write one token a line")
        tokens = [line.strip() for line in lines if line.strip() and not line.startswith(b"#")]
        if any(len(token) < _MIN_BYTES for token in tokens):
            raise TokenError(
                f"{self._path}: a token has fewer than {_MIN_BYTES} characters; make one with `openssl rand -hex 32`"
            )
        self._stamp = state.st_mtime_ns, state.st_ino, state.st_size
        self._digests = [hashlib.sha256(token).digest() for token in tokens]

    def holder(self, token: bytes) -> str:
        """A name for whoever shows a token, "" for one that is not in the file. Takes as long for any token."""
        self._refresh()
        given = hashlib.sha256(token).digest()
        found = [digest for digest in self._digests if hmac.compare_digest(digest, given)]
        return f"token {found[0][:4].hex()}" if found else ""

    def _refresh(self) -> None:
        """Look whether the file has changed: links are followed, as Kubernetes replaces a mounted Secret."""
        try:
            state = self._path.stat()
            if self._stamp == (state.st_mtime_ns, state.st_ino, state.st_size):
                return
            self.load()
            fault = ""
        except (OSError, TokenError) as error:
            self._stamp, self._digests = None, []
            fault = str(error)
        if fault and fault != self._fault:
            logger.warning("no token is accepted until the token file can be read: %s", fault)
        self._fault = fault
