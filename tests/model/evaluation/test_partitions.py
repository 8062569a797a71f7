"""How policies for partitions are compared."""

from extender.core.dra.packing import Weights
from model.evaluation.partitions import Plan, _better, _figures


def test_of_gpus_fewer_are_better_and_of_shares_more_and_cells_count_alike_in_each_seed() -> None:
    def seed(kerf: float, other: float) -> dict[str, dict[str, float]]:
        mine, its = ({"placed_at_1": 100 * value, "gpus_leaving": 10 / value} for value in (kerf, other))
        return {"bound": {"gpus_leaving": 8}, "first-fit": its, "kerf": mine}

    found = _better([[seed(1.0, 0.5), seed(1.0, 0.5)]])["first-fit"]
    assert found["placed_at_1"] == {"mean": 100.0, "half_width": 0.0}  # twice as many
    assert found["gpus_leaving"] == {"mean": 50.0, "half_width": 0.0, "at_most": 60.0}  # 10 where 20 were needed; 8
    # Seeds gain (10 + 20) / 2 and (0 + 30) / 2 percent: no difference between them.
    cells = _better([[seed(0.55, 0.5), seed(0.5, 0.5)], [seed(0.6, 0.5), seed(0.65, 0.5)]])
    assert cells["first-fit"]["placed_at_1"] == {"mean": 15.0, "half_width": 0.0}


def test_figures_are_the_same_each_time() -> None:
    plan = Plan(("a100-40gb",), ("uniform",), 8, (1.0,), 100)
    found = _figures("a100-40gb", "uniform", 5, plan, Weights())
    assert found == _figures("a100-40gb", "uniform", 5, plan, Weights())
    assert list(found) == ["bound", "first-fit", "kube-scheduler", "best-fit", "kerf"]
    for policy in list(found)[1:]:
        assert found[policy]["gpus_leaving"] >= found["bound"]["gpus_leaving"]
        assert 0 < found[policy]["placed_at_1"] <= 100
        assert 0 < found[policy]["first_refusal"] < 100
