"""The interface of the part that answers what-if questions."""

from typing import Protocol


class AnswersWhatIf(Protocol):
    """Answers `kerf what-if`."""

    async def answer(self, body: bytes) -> bytes:
        """Where pods would go, in JSON, for a question in JSON. Raises QuestionError, BusyError, ClusterError."""
