"""The interface of the part that plans how to make room."""

from typing import Protocol


class MakesRoom(Protocol):
    """Answers `kerf defrag`."""

    async def answer(self, body: bytes) -> bytes:
        """Moves that make pods fit, in JSON, for a question in JSON. Raises QuestionError, BusyError, ClusterError."""
