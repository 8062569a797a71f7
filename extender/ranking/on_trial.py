"""A model on trial beside the one that serves: it ranks in shadow, or places a part of the pods."""

from collections.abc import MutableMapping
from dataclasses import replace
from zlib import crc32

from extender.core.occupancies import ObservedRules
from extender.core.policies.kerf import LearnedScore, serving
from extender.core.policies.policy import Policy
from extender.core.policies.registry import CANDIDATE
from extender.kube import objects
from extender.ranking.files import Model


class OnTrial:
    """The model, None for none, and which pods it places."""

    def __init__(self, policies: MutableMapping[str, Policy], rules: ObservedRules) -> None:
        self._policies, self._rules = policies, rules
        self.model: Model | None = None
        self.part = 0.0
        """Of the pods that it places, drawn by their UIDs: nobody chooses which."""
        self.score = LearnedScore(why_not="no model is on trial")
        self._failed = ""
        """Why it could not rank with an outlook before."""

    @property
    def fault(self) -> str:
        """Why it can't rank, "" while it does, or was not asked to yet."""
        return self._failed or (self.score.fault if CANDIDATE in self._policies else "")

    def put(self, score: LearnedScore) -> None:
        """Rank by it from now on."""
        self._failed, self.score = self.fault, score
        self._policies[CANDIDATE] = replace(serving(score, self._rules), name=CANDIDATE)

    def end(self) -> None:
        """There is none any more."""
        self.model, self.part, self._failed = None, 0.0, ""
        self.score = LearnedScore(why_not="no model is on trial")
        self._policies.pop(CANDIDATE, None)

    def policy_of(self, pod: objects.Metadata) -> str:
        """The policy of a pod that it places, "" for others."""
        if not self.part or self.fault or self.score.fault:
            return ""
        return CANDIDATE if crc32(pod.uid.encode()) < self.part * 2**32 else ""
