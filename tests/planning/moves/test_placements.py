"""Where those go who have to leave."""

from extender.planning.moves.evictions import Prices
from extender.planning.moves.placements import Placing
from extender.planning.moves.problems import Problem, Target
from extender.planning.moves.trials import Trial
from extender.planning.moves.units import units_of
from tests.planning.moves.cases import asking, empty_view, in_use, runs


def test_who_has_left_goes_to_another_node_although_his_own_would_be_the_tightest() -> None:
    """Back home without a move is what `bring_home` is for; a move to the node that it leaves helps nobody."""
    view, running = in_use(empty_view(2), [(0, runs("default/a", 1)), (0, runs("default/b", 5))])
    asked = Problem(view, running, Target(0, (asking("default/t", 8),)))
    trial = Trial(asked, units_of(asked))
    leaves = trial.position(0)
    trial.evict(int(trial.units.unit_of[0]))
    assert trial.state.best_row(leaves) == 0
    assert Placing(trial, Prices(trial.units.cost)).settle()
    assert trial.row(leaves) == 1
