"""The learned rank in the service: loads and watches the model, and keeps its outlook up to date.

Each pair of model and outlook is a new policy that replaces the previous one in a single assignment; requests in
progress keep theirs. Nothing here runs in the path of a request.
"""

import asyncio
import logging
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final

from extender.core.clusters import Cluster
from extender.core.occupancies import with_observed_usage
from extender.core.policies import fgd
from extender.core.policies.kerf import HEURISTIC, KerfWeights, LearnedScore, live_term, serving
from extender.core.policies.policy import Expected, Policy
from extender.core.policies.registry import AUTO
from extender.core.resources.requests import GpuRequest
from extender.kube import objects
from extender.kube.background import Background
from extender.ranking import files
from extender.ranking.cluster_context import Look, score_on
from extender.ranking.demands import Kind, demand_of, guessed
from extender.ranking.files import Actor, Model, ModelError
from extender.ranking.model_path import model_path
from extender.ranking.on_trial import OnTrial
from extender.ranking.pricing import Priced, PricingError, WasteCache, priced
from extender.ranking.seen_pods import SeenPods
from extender.ranking.trials import FGD
from extender.settings.ranking import ModelMode
from extender.settings.tree import Settings
from extender.telemetry.service import rules_of

logger = logging.getLogger(__name__)

_NAME: Final = "kerf"
_NOT_YET: Final = "the expected mix of pods is not known yet"
_FIRST_CHECKS_S: Final = 0.2
_PAUSE_FACTOR: Final = 9
"""The pause after a computation of the prices, in multiples of its CPU time."""
_HASH_CHARS: Final = 12


_HALF_LIFE_PODS: Final = 2000.0
"""Half-life of a pod's weight in the mix, in number of later pods."""


@dataclass(frozen=True, slots=True)
class _Pace:
    """When prices and models are computed again."""

    refresh_s: float = 30.0
    """Shortest time between two computations of the prices; see also `_PAUSE_FACTOR`."""
    refresh_max_s: float = 120.0
    """Longest time that a computation may take."""
    min_drift: float = 0.05
    """Prices are computed again when this fraction of the pod mix, or the set of nodes, has changed."""
    look_frac: float = 0.1
    """A model with attention is evaluated again when this fraction of the GPUs has been allocated or freed."""
    look_s: float = 300.0
    """And after this time if anything has changed."""


class LearnedRank(Background):
    """Runs from `start` to `stop`. Sets the policies `kerf` and `auto` in `policies`."""

    def __init__(
        self,
        settings: Settings,
        policies: MutableMapping[str, Policy],
        snapshot: Callable[[], Cluster],
        synced: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        super().__init__("learned rank", needed=False)
        wanted = settings.model
        self.mode = wanted.mode
        self._wanted = wanted
        self._policy = settings.decisions.policy
        self.path = model_path(wanted, ranks=self._policy in (AUTO, _NAME))
        """The directory of the model; None if there is none to load."""
        self._policies = policies
        self._snapshot = snapshot
        self._synced = synced
        self._clock = clock
        self._rules = rules_of(settings.telemetry)
        has_scipy = find_spec("scipy") is not None
        self._by_lp = wanted.prices == "lp" or (wanted.prices == "auto" and has_scipy)
        self.weights = KerfWeights()
        self.pace = _Pace()
        self._live = live_term()
        expected = [
            Expected(pod.cpu_milli, pod.gpus, pod.gpu_milli, pod.count, tuple(pod.models), pod.memory_mib)
            for pod in settings.decisions.typical_pods
        ]
        self.mix = SeenPods(_HALF_LIFE_PODS, guessed(expected), wanted.prior_pods)
        self.base: Model | Actor | None = None
        """The configured model."""
        self.fitted: Model | None = None
        """The fitted model that replaces it (part `learning`)."""
        self.on_trial = OnTrial(policies, self._rules)
        self.refusal = ""
        """Why the configured model was refused."""
        self.num_loads = 0
        self.priced = Priced()
        self.score = LearnedScore()
        self.look: Look | None = None
        """The cluster state of the score in use; None if the model has no score yet."""
        self.num_looks = 0
        self._preferred = _NAME
        """The policy that `auto` means in mode serve, unless the model is pinned."""
        self._pinned = False
        self._spoils = WasteCache()
        self._serial = 0
        self._signature: object = None

    # State

    @property
    def model(self) -> Model | Actor | None:
        """The model that ranks."""
        return self.base if self.fitted is None else self.fitted

    @property
    def why_not(self) -> str:
        """Why no model ranks; "" if one does."""
        return self.refusal or self.score.fault

    @property
    def auto(self) -> str:
        """The policy that `auto` means now."""
        return self._policies[AUTO].name

    def wastes_gpu(self, request: GpuRequest) -> bool:
        """Whether a pod takes a larger share of a GPU's worth than of the GPU, by the model's current prices."""
        served = self.score.served
        return served is not None and self._spoils.wastes_gpu(served.outlook.worth, request)

    def fault(self) -> str:
        """Why the learned rank is degraded; "" if it is not, or not configured."""
        unused = self.path is None and self._policy != _NAME
        if unused or self.why_not == _NOT_YET:  # normal after a start and without nodes
            return ""
        if self.why_not:
            return f"{self.why_not}; {HEURISTIC} ranks instead"
        return f"no LP prices, using face value instead: {self.priced.fault}" if self.priced.fault else ""

    def age_s(self) -> float | None:
        """Age of the prices in seconds; None if there are none."""
        return None if self.priced.num == 0 else round(self._clock() - self.priced.at, 3)

    def look_age_s(self) -> float | None:
        """Seconds since the model's last evaluation; None if there was none."""
        return None if self.look is None else round(self._clock() - self.look.at, 3)

    def canary(self, metadata: objects.Metadata) -> str:
        """The policy of a canary pod; "" for others."""
        if self.mode is not ModelMode.CANARY:
            return self.on_trial.policy_of(metadata)
        labels = metadata.labels or {}
        chosen = metadata.namespace in self._wanted.canary_namespaces or any(
            labels.get(name) == value for name, value in self._wanted.canary_labels.items()
        )
        return _NAME if chosen else ""

    # Rounds

    def start(self) -> None:
        """Load the model and start watching it, in the running event loop."""
        self._load(files.signature(self.path))
        super().start()

    async def round(self) -> None:
        """Check the files, the nodes and the mix once, and update the score."""
        signature = files.signature(self.path)
        if signature != self._signature:
            await asyncio.sleep(0)
            if self._signature != signature == files.signature(self.path):
                self._load(signature)
        if self.model is None or not self._synced():
            return
        self.mix.started = True
        cluster = self._snapshot()
        if not cluster.row_of:
            return
        self.mix.num_gpus = int((cluster.gpu_model >= 0).sum())
        served = self.score.served
        if self.look is None or (served is not None and len(cluster.models) > served.num_models):
            await self._serve(self.mix.counts())  # fast: with the existing prices
        if self._due(cluster):
            await self._price(cluster)
        elif self.look and isinstance(self.model, Actor) and self._is_over(self.look):
            await self._serve(self.mix.priced)  # for the same mix as at the previous evaluation

    def _is_over(self, look: Look) -> bool:
        return look.is_over(self._counted(), self._clock(), self.pace.look_frac, self.pace.look_s)

    def _due(self, cluster: Cluster) -> bool:
        last = self.priced
        if last.nodes is None:
            return True
        moved = last.nodes is not cluster.row_of or self.mix.drift() > self.pace.min_drift
        return moved and self._clock() - last.at >= max(self.pace.refresh_s, _PAUSE_FACTOR * last.cpu_s)

    async def _price(self, cluster: Cluster) -> None:
        model = self.model
        if model is None:
            return
        counts, began = self.mix.counts(), self._clock()
        demand = await asyncio.to_thread(demand_of, cluster, counts)
        worth, cpu_s, fault = None, 0.0, ""
        try:
            if self._by_lp:
                worth, cpu_s = await priced(demand, model.manifest.foresight_load, self.pace.refresh_max_s)
        except (PricingError, OSError) as error:
            fault = str(error)
            if fault != self.priced.fault:
                logger.warning("no LP prices: %s", fault)
        num = self.priced.num + (worth is not None)
        self.priced = Priced(worth, fault, cluster.row_of, self._clock(), self._clock() - began, cpu_s, num)
        self.mix.priced = counts
        await self._serve(counts)

    async def _serve(self, counts: dict[Kind, float]) -> None:
        """Compute and serve the scores of the model and of the one on trial, for the expected pods by kind."""
        model = self.model
        if model is None:
            return
        look = Look(self._counted(), self._clock())
        score = await asyncio.to_thread(score_on, model, look.cluster, counts, self.priced.worth, self._parts())
        if self.model is model:
            if score.fault and score.fault != self.score.fault:
                logger.error("%s; %s ranks instead", score.fault, HEURISTIC)
            self._put(score)
            self.look = look
            self.num_looks += 1
        if trial := self.on_trial.model:
            score = await asyncio.to_thread(score_on, trial, look.cluster, counts, self.priced.worth, self._parts())
            if self.on_trial.model is trial:
                self.on_trial.put(score)

    def _counted(self) -> Cluster:
        """The current cluster with observations applied, as policies see it."""
        return with_observed_usage(self._snapshot(), self._rules)

    def _put(self, score: LearnedScore) -> None:
        """Serve a score. Each policy is replaced in one assignment, so that readers see the old or the new one."""
        self.score = score
        policy = serving(score, self._rules)
        self._policies[_NAME] = policy
        serves = self.mode is ModelMode.SERVE and self.model is not None
        self._policies[AUTO] = self._chosen(policy) if serves else self._policies[HEURISTIC]

    def prefer(self, name: str) -> None:
        """Make `auto` mean another of `trials.candidates`, from the next request on."""
        self._preferred = name
        self._put(self.score)

    def _chosen(self, learned: Policy) -> Policy:
        """The policy for `auto`. FGD uses the expected mix, as in its trial, and a context that identifies the mix."""
        served = self.score.served
        if self._pinned:
            return learned
        if self._preferred == FGD and served is not None and not self.score.fault:
            return replace(fgd.expecting(served.outlook.mix), context=lambda _: (FGD, id(served)))
        return learned if self._preferred in (_NAME, FGD) else self._policies[self._preferred]

    def _parts(self) -> dict[str, Any]:
        self._serial += 1
        return {"weights": self.weights, "live": self._live, "serial": self._serial}

    def _load(self, signature: object) -> None:
        """Read the configured model."""
        self._signature = signature
        self.base, self.refusal = None, ""
        if self.path is not None:
            try:
                self.base = files.read_any(self.path)
                self.num_loads += 1
                logger.info("loaded model %s from %s", self.base.manifest.sha256[:_HASH_CHARS], self.path)
            except ModelError as error:
                self.refusal = f"the model was refused: {error}"
                logger.error("%s; %s ranks instead", self.refusal, HEURISTIC)
        self._begin()

    def adopt(self, fitted: Model | None, *, pinned: bool = False) -> None:
        """Rank by a fitted model from now on, or by the configured one if None. `auto` means a pinned model."""
        if fitted is not self.fitted:
            self.fitted = fitted
            if fitted is not None:
                self.num_loads += 1
                self._preferred = _NAME  # it was better than the previous `auto`
            self._begin()
        if pinned != self._pinned:
            self._pinned = pinned
            self._put(self.score)

    def try_out(self, model: Model, part: float) -> None:
        """Put a model on trial; it places a `part` of the pods."""
        if self.on_trial.model is not model:
            self.on_trial.end()
            self.on_trial.model, self.look = model, None
        self.on_trial.part = part

    def _begin(self) -> None:
        self.look = None  # the previous score ranks until this model has one
        if self.model is None:
            self._put(LearnedScore(why_not=self.refusal or "no model is loaded", **self._parts()))
        elif self.score.fault:
            self._put(LearnedScore(why_not=_NOT_YET, **self._parts()))

    async def run(self) -> None:
        while True:
            pause_s = self._wanted.check_s if self.model is None or self.look else _FIRST_CHECKS_S
            try:
                await self.round()
            except Exception:
                logger.exception("a check of the learned rank failed")
                pause_s = self._wanted.check_s
            await asyncio.sleep(pause_s)
