"""What a run has skipped, told at its end in one sentence."""

from collections import Counter
from collections.abc import Iterable
from typing import Any


def not_tested(skipped: Iterable[Any]) -> str:
    """One sentence that says what was not tested, and what brings it; "" where nothing was skipped.

    `skipped` are pytest's reports. Reasons say what is missing, and which packages have it.
    """
    found = Counter((_folder(report), _reason(report)) for report in skipped)
    if not found:
        return ""
    parts = [f"{number} in {folder} ({reason})" for (folder, reason), number in sorted(found.items())]
    return f"Not tested here: {'; '.join(parts)}."


def _folder(report: Any) -> str:
    """The folder of a test, or of a file of which nothing was collected."""
    return str(report.nodeid.partition("::")[0].rpartition("/")[0])


def _reason(report: Any) -> str:
    """As the test says it; pytest has the place beside it."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(text.removeprefix("Skipped: ").split()).rstrip(".")
