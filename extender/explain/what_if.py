"""What answers what-if questions, as those see it who ask by themselves: a part does."""

from typing import Protocol


class AnswersWhatIf(Protocol):
    """Answers `kerf what-if`."""

    async def answer(self, body: bytes) -> bytes:
        """Where pods would go, as JSON, of a question in JSON. Raises QuestionError, BusyError, ClusterError."""
