"""What works out how room could be made, as those see it who tell what would help: a part does."""

from typing import Protocol


class MakesRoom(Protocol):
    """Answers `kerf defrag`."""

    async def answer(self, body: bytes) -> bytes:
        """The moves by which pods would fit, as JSON, of a question in JSON. Raises QuestionError, BusyError,
        ClusterError."""
