"""A model on trial next to the serving one: it ranks in shadow, or places part of the pods."""

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
    """The model on trial, and the part of the pods that it places."""

    def __init__(self, policies: MutableMapping[str, Policy], rules: ObservedRules) -> None:
        self._policies, self._rules = policies, rules
        self.model: Model | None = None
        self.part = 0.0
        """The fraction of pods that it places, selected by a hash of their UIDs."""
        self.score = LearnedScore(why_not="no model is on trial")
        self._failed = ""
        """The fault of an earlier score."""

    @property
    def fault(self) -> str:
        """Why the model can't rank; "" if it can, or has no score yet."""
        return self._failed or (self.score.fault if CANDIDATE in self._policies else "")

    def put(self, score: LearnedScore) -> None:
        """Rank by a new score from now on."""
        self._failed, self.score = self.fault, score
        self._policies[CANDIDATE] = replace(serving(score, self._rules), name=CANDIDATE)

    def end(self) -> None:
        """End the trial."""
        self.model, self.part, self._failed = None, 0.0, ""
        self.score = LearnedScore(why_not="no model is on trial")
        self._policies.pop(CANDIDATE, None)

    def policy_of(self, pod: objects.Metadata) -> str:
        """The candidate's policy for a pod that it places; "" for other pods."""
        if not self.part or self.fault or self.score.fault:
            return ""
        return CANDIDATE if crc32(pod.uid.encode()) < self.part * 2**32 else ""
