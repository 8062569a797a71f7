"""Whoever asks Kerf to make room, all through a run: for what waits, for empty nodes, sometimes by stale plans."""

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
_MOST_KEPT: Final = 3
_BUSY: Final = "another plan is being carried out"
_NOT_NOW: Final = (_BUSY, "can't be recorded", "standby")
"""In answers to plans that may be carried out later."""
_TRIES: Final = 4
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
        self._kept: list[tuple[str, str]] = []  # of plans that were shown: of which process, and their ids
        self.refusals: list[str] = []
        """Why others were not begun, or can't be."""

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
        return any('"stopped":true' in _call(f"{url}/defrag/stop", asked)[1] for url in self._urls())

    def told(self) -> str:
        """What came of it, for the log."""
        refusals = "; ".join(sorted(set(self.refusals)))
        return f"{self.num_asked} questions, {self.num_fit} of them fit, {self.num_begun} plans begun; {refusals}"

    def ask_for(self, num_plans: int) -> None:
        """Have so many plans shown by which room can be made, if there are."""
        for _ in range(_TRIES):
            if self.num_fit < num_plans:
                self.ask()

    def ask(self) -> None:
        """Ask once, of whoever leads."""
        question = self._question()
        for url in self._urls():
            if self._leads(url):
                status, text = _call(f"{url}/defrag", question)
                if status == 200:
                    self.num_asked += 1
                    self._keep(url, json.loads(text))
                return

    def _run(self) -> None:
        while not self._ended.wait(_PAUSE_S):
            self._apply_all()
            if len(self._kept) < _MOST_KEPT:
                self.ask()

    @staticmethod
    def _leads(url: str) -> bool:
        """Whether this process could carry a plan out, or does."""
        status, text = _call(f"{url}/defrag")
        fault = json.loads(text)["fault"] if status == 200 else "no answer"
        return not fault or _BUSY in fault

    def _question(self) -> dict[str, Any]:
        chance = self._rng.random()
        if chance < 0.45:
            return {"for": f"default/{self._rng.choice(self._targets)}"}
        if chance < 0.6:
            return {"freeNodes": self._rng.randint(1, 2)}
        return {"empty": [self._rng.choice(self._nodes)]}

    def _keep(self, url: str, answer: dict[str, Any]) -> None:
        if answer["fits"] and answer["moves"]:
            self.num_fit += 1
            self._kept.append((url, answer["id"]))
        elif not answer["fits"]:
            self.refusals += answer["impossible"][:1]

    def _apply_all(self) -> None:
        """Have all plans carried out that were shown, some of them stale by then; one at a time is."""
        kept, self._kept = self._kept, []
        for url, plan in kept:
            if self._ended.is_set():
                return
            status, text = _call(f"{url}/defrag/apply", {"id": plan})
            if status == 200:
                self.num_begun += 1
            elif any(words in text for words in _NOT_NOW):
                self._kept.append((url, plan))
            else:
                self.refusals.append(text)


def _call(url: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """Status and text of a GET, or of a POST of what is given; 0 where nobody answers."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
