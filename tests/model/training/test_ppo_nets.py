"""The nets in torch compute what the service computes in NumPy."""

from pathlib import Path

import numpy as np
import pytest

from extender.core.clusters import Floats
from extender.core.valuenet import attention
from extender.core.valuenet.attention import Sight, _context
from extender.core.valuenet.features import CONTEXT
from extender.core.valuenet.potentials import _steps, in_context, values
from extender.ranking import files
from extender.ranking.files import _read_actor
from tests.core.valuenet.builders import D, F, random_attention, random_sight

torch = pytest.importorskip("torch", reason="no torch: make setup-train")

from model.simulations.episodes import POD_FEATURES  # noqa: E402 - needs torch
from model.training import nets  # noqa: E402
from model.training.nets import _LEVELS, Choice, Seen, _quantum  # noqa: E402

OFFERED = len(POD_FEATURES) + 1


def random_arrays(rng: np.random.Generator, net: int = 4) -> dict[str, Floats]:
    """Arrays of a random actor, and of critic and skips beside it."""
    arrays = nets.initial(random_attention(rng), net, rng)
    drawn = {name: array if name in nets.FIXED else rng.normal(size=array.shape) for name, array in arrays.items()}
    return {**drawn, "begin": np.append(rng.normal(size=F), np.log(0.3))}


def seen_of(rng: np.random.Generator, sights: list[Sight]) -> Seen:
    """One decision in each of several scenarios, whose nodes are as many."""
    most = max(len(each.pods) for each in sights)
    pods = np.stack([np.pad(each.pods, ((0, most - len(each.pods)), (0, 0))) for each in sights])
    log_count = np.full((len(sights), most), -np.inf)
    for i, each in enumerate(sights):
        log_count[i, : len(each.pods)] = np.log(each.pod_count)
    nodes, cluster = (np.stack([getattr(each, name) for each in sights]) for name in ("nodes", "cluster"))
    context = rng.normal(size=(len(sights), len(CONTEXT)))
    arrays = nodes, pods, log_count, context, np.arange(len(sights)), cluster, rng.random((len(sights), OFFERED))
    return Seen(*(torch.from_numpy(array) for array in arrays))


def sights(rng: np.random.Generator, num_nodes: int, *num_pods: int) -> list[Sight]:
    return [random_sight(rng, num_nodes, num)._replace(node_count=np.ones(num_nodes)) for num in num_pods]


def test_torch_and_numpy_agree_on_what_is_seen() -> None:
    rng = np.random.default_rng(0)
    arrays = random_arrays(rng)
    shown = sights(rng, 7, 3, 40, 1, 90)
    tensors = nets.tensors_of(arrays)
    seen = seen_of(rng, shown)
    known = nets.contexts(seen, tensors)
    points = nets.points(seen, known, tensors).detach().numpy()
    by_context = seen.context.numpy() @ arrays["by_context"]
    for one, known_of, found, step in zip(shown, known.detach().numpy(), points, by_context, strict=True):
        actor = nets.actor_of(arrays)
        assert np.abs(known_of - _context(one, actor)).max() < 1e-12
        assert np.abs(found - step - attention.point(one, actor)).max() < 1e-12


@pytest.mark.parametrize("net", [0, 4])
def test_a_gain_is_that_of_the_potential_that_is_served(net: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = random_arrays(rng, net)
    files.write(tmp_path / "m", nets.actor_of(arrays), 1.0, {}, ())
    actor = _read_actor(tmp_path / "m").attention
    before, after, point = rng.normal(size=(5, F)), rng.normal(size=(5, F)), rng.normal(size=D)
    potential = attention.potential_at(point, actor)
    tensors = nets.tensors_of(arrays)
    now, then, at = (torch.from_numpy(each[None]) for each in (before, after, point))
    found = nets.gains(now, then, at, tensors)[0].detach().numpy()
    expected = values(after, potential) - values(before, potential)
    assert np.abs(found - expected).max() < 1e-12
    assert len(potential.out) == net
    if not net:  # the quantum is begin's, whatever the point: its reach is nothing in training
        assert float(_quantum(tensors)) == pytest.approx(0.3)


def test_what_is_served_of_steps_by_context_is_what_was_learned() -> None:
    rng = np.random.default_rng(5)
    arrays = random_arrays(rng) | {"reach": np.append(rng.random(F), 0.0)}
    tensors = nets.tensors_of(arrays)
    shown = sights(rng, 6, 4, 4)
    seen = seen_of(rng, shown)
    steps = nets.points(seen, nets.contexts(seen, tensors) * 0, tensors)
    without = nets.points(seen._replace(context=seen.context * 0), nets.contexts(seen, tensors) * 0, tensors)
    served = nets.potential_of(arrays)
    for context, step in zip(seen.context.numpy(), (steps - without).detach().numpy(), strict=True):
        moved = in_context(served, context)
        assert moved.weights - served.weights == pytest.approx(arrays["reach"][:-1] * step[:-1])
        assert moved.quantum == pytest.approx(served.quantum)


def test_a_choice_is_between_the_first_nodes_of_the_best_levels() -> None:
    rng = np.random.default_rng(2)
    arrays = random_arrays(rng)
    tensors = nets.tensors_of(arrays)
    gain = np.round(rng.normal(size=(30, 12)), 1)
    fits = rng.random((30, 12)) < 0.7
    fits[0] = False
    rows, there = nets.levels(torch.from_numpy(gain), torch.from_numpy(fits), tensors)
    potential = attention.potential_at(np.zeros(D), nets.actor_of(arrays))
    for i in range(30):
        level = np.where(fits[i], _steps(gain[i], potential), -np.inf)
        firsts = [int(np.flatnonzero(level == each)[0]) for each in sorted(set(level[fits[i]].tolist()), reverse=True)]
        assert rows[i][there[i]].tolist() == firsts[:_LEVELS]


def test_every_array_that_is_trained_has_a_gradient() -> None:
    rng = np.random.default_rng(4)
    tensors = nets.tensors_of(random_arrays(rng))
    seen = seen_of(rng, sights(rng, 6, 4, 6))
    known = nets.contexts(seen, tensors)
    before, after = (torch.from_numpy(rng.normal(size=(2, 3, F))) for _ in range(2))
    choice = Choice(before, after, torch.ones(2, 3, dtype=torch.bool), torch.ones(2, dtype=torch.bool))
    odds = torch.log_softmax(nets.logits(choice, seen, known, tensors, 50.0), dim=1)
    (odds[:, 0].sum() + odds[:, 3].sum() + nets.values(seen, known, tensors).sum()).backward()
    for name, tensor in tensors.items():
        if name in nets.FIXED:
            assert tensor.grad is None, name
        else:
            assert tensor.grad is not None and bool((tensor.grad != 0).any()), name
