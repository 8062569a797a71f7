"""Steps at their times: one that the API server would not have is taken again a little later."""

from collections.abc import Callable

import urllib3

from tests.controlplane import ApiError

Step = Callable[[], bool]
"""Says False when it has to be taken again."""

_AGAIN_S = 0.1


class Schedule:
    """What is still to come, in seconds since the storm began."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, Step]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def take_due(self, now_s: float) -> None:
        """Take the steps that are due."""
        while self._steps and self._steps[0][0] <= now_s:
            at_s, step = self._steps.pop(0)
            if not done(step):
                self.at(max(at_s, now_s) + _AGAIN_S, step)

    def at(self, at_s: float, step: Step) -> None:
        """Plan a step."""
        self._steps.append((at_s, step))
        self._steps.sort(key=lambda entry: entry[0])


def done(step: Step) -> bool:
    """Take a step; False when the API server would not have it now."""
    try:
        return step()
    except ApiError as error:
        if error.status not in (409, 429) and error.status < 500:
            raise
        return False
    except (urllib3.exceptions.HTTPError, OSError):
        return False
