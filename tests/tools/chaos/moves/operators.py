"""Whoever asks Kerf to make room, all through a run: for what waits, for empty nodes, and by plans that have gone stale."""

import http.client
import json
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from tests.tools.chaos.modes import TOKEN

_PAUSE_S: Final = 0.5
_HESITATES_S: Final = 2.0
_TIMEOUT_S: Final = 15.0


class Operator:
    """In a thread of its own, from `start` to `stop`."""

    def __init__(self, urls: Callable[[], Sequence[str]], targets: Collection[str], nodes: Collection[str], seed: int):
        """`urls`: of Kerf's processes, the one that leads first."""
        self._urls = urls
        self._targets = sorted(targets)
        self._nodes = sorted(nodes)
        self._rng = random.Random(f"operator of {seed}")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)
        self.num_asked = self.num_fit = self.num_begun = 0
        """Questions answered, those by which room can be made, and plans that Kerf has begun."""
        self.refusals: list[str] = []
        """Why others were not begun."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; nothing is begun any more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def stop_plan(self) -> bool:
        """Have what is under way stopped; whether anything was."""
        asked = {"why": "chaos"}
        return any('"stopped":true' in _post(f"{url}/defrag/stop", asked)[1] for url in self._urls())

    def told(self) -> str:
        """What came of it, for the log."""
        refusals = "; ".join(sorted(set(self.refusals)))
        return f"{self.num_asked} questions, {self.num_fit} of them fit, {self.num_begun} plans begun; {refusals}"

    def _run(self) -> None:
        while not self._ended.wait(_PAUSE_S):
            question = self._question()
            for url in self._urls():
                status, text = _post(f"{url}/defrag", question)
                if status == 200:
                    self.num_asked += 1
                    self._apply(url, json.loads(text))
                    break

    def _question(self) -> dict[str, Any]:
        chance = self._rng.random()
        if chance < 0.75:
            return {"for": f"default/{self._rng.choice(self._targets)}"}
        if chance < 0.85:
            return {"freeNodes": self._rng.randint(1, 2)}
        return {"empty": [self._rng.choice(self._nodes)]}

    def _apply(self, url: str, answer: dict[str, Any]) -> None:
        if not answer["fits"] or not answer["moves"]:
            return
        self.num_fit += 1
        if self._rng.random() < 0.3:  # the plan goes stale
            self._ended.wait(self._rng.uniform(0.0, _HESITATES_S))
        if self._ended.is_set():
            return
        status, text = _post(f"{url}/defrag/apply", {"id": answer["id"]})
        if status == 200:
            self.num_begun += 1
        else:
            self.refusals.append(text)


def _post(url: str, body: dict[str, Any]) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
