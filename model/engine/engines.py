"""Engines that decide in a simulation: compiled, or the service's own functions, with the same results.

An engine updates its nodes in place. The C classes of pods are identified by number.
"""

from collections.abc import Sequence

import numpy as np

from extender.core.clusters import Floats, Longs, Mask, Rows
from extender.core.fit import filters
from extender.core.fragmentation import Mix, Nodes, PodClasses, fragment_milli
from extender.core.policies import fgd, kerf
from extender.core.policies.policy import Policy
from extender.core.valuenet.features import Outlook
from extender.core.valuenet.potentials import Potential, prospect
from extender.ranking import rules
from model.engine import kernels
from model.engine.clusters import models_of
from model.engine.node_scores import Learned, learned_on
from model.engine.ranks import Rank, Tie


def _check_filters() -> None:
    """Raise ValueError if an installed filter could not be loaded, as the service does at start."""
    if filters.faults:
        raise ValueError("\n".join(filters.faults.values()))


class Compiled:
    """The compiled engine."""

    def __init__(self, nodes: Nodes, asks: PodClasses, mix: Mix, rank: Rank = Rank.NONE, tie: Tie = Tie.FIRST) -> None:
        _check_filters()
        self.nodes, self._asks, self._rank, self._tie = nodes, asks, int(rank), int(tie)
        self._learned: Learned | None = None
        self._last = 0 if tie is Tie.SAMPLED else -1
        self._reset_memo(mix)

    def follow(self, outlook: Outlook, potential: Potential) -> None:
        """Switch to a learned rank, and clear the cached scores."""
        self._learned = learned_on(self.nodes, outlook, potential)
        self._reset_memo(outlook.mix)

    def decide(self, c: int, draw: float = 0.0) -> int:
        """Return the node for a class, -1 if none fits; `draw` in [0, 1) breaks random ties."""
        node, self._last = kernels.decide(
            self.nodes, self._asks, c, self._rank, self._tie, self._mix, self._learned, self._memo, draw, self._last
        )
        return node

    def take(self, c: int, node: int) -> int:
        """Book a class on the node from `decide`; returns its GPUs as a bit mask."""
        return kernels.take(self.nodes, self._asks, c, node, self._mix, self._memo)

    def give_back(self, c: int, node: int, gpus: int) -> None:
        """Undo `take`, which returned `gpus`."""
        kernels.give_back(self.nodes, self._asks, c, node, gpus, self._mix, self._memo)

    def mark_fitting(self, node: int, fitting: Mask) -> None:
        """Set (C,) `fitting` for each class that fits on a node after a release there."""
        kernels.mark_fitting(self.nodes, self._asks, node, fitting)

    def changed(self, node: int) -> None:
        """Invalidate a node whose free capacity was changed outside the engine."""
        kernels.note_change(self.nodes, node, self._mix, self._memo)

    def fragment_milli(self, without: Sequence[int] = ()) -> float:
        """Idle GPU milli that a typical pod is expected not to be able to use, `without` some nodes."""
        return float(self._memo.fragment.sum() - self._memo.fragment[list(without)].sum())

    def place_all(self, classes: Longs, draws: Floats, placed: Longs, gpus: Longs, fragments: Floats) -> None:
        """Offer P pods one after the other, as `kernels.place_all`."""
        kernels.place_all(
            self.nodes, self._asks, classes, self._rank, self._tie, self._mix, self._learned, self._memo,
            draws, placed, gpus, fragments,
        )  # fmt: skip

    def _reset_memo(self, mix: Mix) -> None:
        self._mix, self._memo = mix, kernels.memo_of(len(self._asks.cpu_milli), self.nodes, mix)


class Rules(rules.Rules):
    """The service's own functions, with the simulator's tie-breaks and its measure of fragments."""

    def __init__(
        self,
        nodes: Nodes,
        asks: PodClasses,
        mix: Mix,
        policy: Policy,
        tie: Tie = Tie.FIRST,
        model_names: Sequence[str] = (),
    ) -> None:
        """`model_names` are indexed by `nodes.model`."""
        _check_filters()
        num_models = int(nodes.model.max(initial=-1)) + 1
        names = [*model_names, *(f"model-{bit}" for bit in range(len(model_names), num_models))]
        models, memory = models_of(names, product_memory=policy.context is not None and policy.name != "kerf")
        super().__init__(nodes, asks, fgd.expecting(mix) if policy.name == "fgd" else policy, models, memory)
        self._asks, self._mix, self._tie = asks, mix, tie
        self._last = 0 if tie is Tie.SAMPLED else -1

    def follow(self, outlook: Outlook, potential: Potential) -> None:
        """Switch to a learned rank."""
        self._mix = outlook.mix
        self.decide_by(kerf.serving(kerf.LearnedScore(prospect(potential, outlook), serial=id(outlook))))

    def decide(self, c: int, draw: float = 0.0) -> int:
        """As `Compiled.decide`."""
        node, self._last = kernels.pick(self.scores(c), int(self._tie), draw, self._last)
        return node

    def mark_fitting(self, node: int, fitting: Mask) -> None:
        """As `Compiled.mark_fitting`."""
        kernels.mark_fitting(self.nodes, self._asks, node, fitting)

    def place_all(self, classes: Longs, draws: Floats, placed: Longs, gpus: Longs, fragments: Floats) -> None:
        """As `Compiled.place_all`."""
        fragment = self._fragments(np.arange(len(self.nodes.model)))
        total = float(np.add.accumulate(fragment)[-1])
        for p, c in enumerate(classes.tolist()):
            node = placed[p] = self.decide(c, float(draws[p]))
            if node >= 0:
                gpus[p] = self.take(c, node)
                before = float(fragment[node])
                fragment[node] = self._fragments(np.array([node]))[0]
                total += float(fragment[node]) - before
            fragments[p] = total

    def fragment_milli(self, without: Sequence[int] = ()) -> float:
        """As `Compiled.fragment_milli`."""
        return float(self._fragments(np.setdiff1d(np.arange(len(self.nodes.model)), list(without))).sum())

    def _fragments(self, rows: Rows) -> Floats:
        nodes = self.nodes
        free = nodes.gpu_free_milli[rows].astype(np.int64)
        return fragment_milli(nodes.cpu_free_milli[rows], free, nodes.model[rows], self._mix)


Engine = Compiled | Rules
