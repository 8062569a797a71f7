"""capacity x time = booked + free + stranded + sick, to the last millionth of a GPU-second, whatever happens."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.parts.usage.rigs import Rig

NODES = ("a", "b", "c")
PRODUCTS = {"a": ("Tesla-T4", 4), "b": ("NVIDIA-A100-SXM4-80GB", 2), "c": ("Tesla-T4", 4)}
"""Product and number of GPUs."""


@dataclass
class Account:
    """The slow account of whole GPUs: which namespace holds how many of which node, summed step by step."""

    gpus_of: dict[str, int] = field(default_factory=dict)
    on: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """Namespace, node and GPUs of each pod."""
    seen: tuple[int, list[tuple[str, str, int]]] = (0, [])
    """All GPUs and all pods at the last look."""
    booked_ms: Counter[str] = field(default_factory=Counter)
    capacity_ms: int = 0

    def look(self) -> None:
        self.seen = sum(self.gpus_of.values()), list(self.on.values())

    def passes(self, ms: int) -> None:
        capacity, pods = self.seen
        self.capacity_ms += capacity * ms
        for namespace, _, gpus in pods:
            self.booked_ms[namespace] += gpus * ms


class AnyHistory(RuleBasedStateMachine):
    """Nodes and pods come and go, change and are looked at, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.rig, self.account, self.num = Rig(), Account(), 0
        for name in NODES:
            self._node(name)
        self.rig.tick()
        self.account.look()

    def _node(self, name: str, *, cordoned: bool = False) -> None:
        product, self.account.gpus_of[name] = PRODUCTS[name]
        self.rig.node(name, self.account.gpus_of[name], product=product, cordoned=cordoned)

    @rule(node=st.sampled_from(NODES), gpus=st.integers(1, 3), namespace=st.sampled_from("xyz"))
    def bind(self, node: str, gpus: int, namespace: str) -> None:
        """A pod of a scheduler that leaves no node overbooked."""
        held = sum(held for _, where, held in self.account.on.values() if where == node)
        if self.account.gpus_of.get(node, 0) - held >= gpus:
            self.num += 1
            self.rig.pod(f"p{self.num}", gpus, node, namespace)
            self.account.on[f"p{self.num}"] = namespace, node, gpus

    @precondition(lambda self: self.account.on)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.account.on)))
        self.rig.gone(name)
        del self.account.on[name]

    @rule(node=st.sampled_from(NODES))
    def lose_a_node(self, node: str) -> None:
        if not any(where == node for _, where, _ in self.account.on.values()):
            self.rig.ledger.remove_node(node)
            self.account.gpus_of.pop(node, None)

    @rule(node=st.sampled_from(NODES))
    def get_a_node(self, node: str) -> None:
        if node not in self.account.gpus_of:
            self._node(node)

    @rule(node=st.sampled_from(NODES), cordoned=st.booleans())
    def cordon(self, node: str, *, cordoned: bool) -> None:
        if node in self.account.gpus_of:
            self._node(node, cordoned=cordoned)

    @rule(node=st.sampled_from(NODES), loads=st.lists(st.sampled_from([0.0, 0.02, 0.5, 1.0]), min_size=4, max_size=4))
    def tell(self, node: str, loads: list[float]) -> None:
        if node in self.account.gpus_of:
            self.rig.loads(node, *loads[: PRODUCTS[node][1]])

    @rule(eighths=st.integers(1, 240))
    def look(self, eighths: int) -> None:
        ms = 125 * eighths  # times that a float holds exactly
        self.account.passes(ms)
        self.rig.tick(ms / 1000)
        self.account.look()

    @invariant()
    def all_adds_up(self) -> None:
        sums = self.rig.sums()
        assert sums["capacity"] == sums["booked"] + sums["free"] + sums["stranded"] + sums["sick"]
        assert min(sums.values()) >= 0
        assert sums["used"] <= sums["measured"] <= sums["booked"]
        assert sums["idle"] <= sums["measured"]

    @invariant()
    def it_is_the_slow_account(self) -> None:
        sums = self.rig.sums()
        assert sums["capacity"] == 1000 * self.account.capacity_ms
        booked = {name: ms / 1000 for name, ms in self.account.booked_ms.items()}
        assert {name: seconds for name, seconds in self.rig.booked().items() if seconds} == booked

    @invariant()
    def the_timeline_is_the_accounts(self) -> None:
        """Each step adds up as all of it does, and all steps together are all that was counted."""
        meter = self.rig.meter
        meter.cut()
        for ring in (meter.timeline.fine, meter.timeline.coarse):
            for step in ring.steps:
                capacity, free, stranded, sick, booked, used, measured, idle = step.amounts
                assert capacity == booked + free + stranded + sick
                assert idle <= measured >= used
                assert sum(step.booked.values()) == booked
                assert 0 < step.counted_ms <= 1000 * ring.step_s
            sums = [sum(amounts) for amounts in zip(*(step.amounts for step in ring.steps), strict=True)]
            assert sums == ([] if not ring.steps else list(meter.accounts.sums().amounts))


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=settings().max_examples // 3, stateful_step_count=40, deadline=None)
