"""Slow, plain versions of what the queue computes with arrays."""

from collections.abc import Sequence

from extender.kube.objects import Expression, Node, PodSpec, Taint, Term, Toleration

_REPELS = ("NoSchedule", "NoExecute")
_UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def allows(spec: PodSpec, node: Node) -> bool:
    """Whether a pod may run on a node, as kube-scheduler's plugins for cordons, taints and node affinity see it."""
    taints = [taint for taint in node.spec.taints or () if taint.effect in _REPELS]
    if node.spec.unschedulable:
        taints.append(_UNSCHEDULABLE)
    if taints and not all(_tolerated(taint, spec.tolerations or ()) for taint in taints):
        return False
    labels = node.metadata.labels or {}
    if spec.node_selector and not spec.node_selector.items() <= labels.items():
        return False
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is None or affinity.required is None:
        return True
    return any(_matches(term, node) for term in affinity.required.node_selector_terms or ())


def _tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    return any(
        (not toleration.effect or toleration.effect == taint.effect)
        and (not toleration.key or toleration.key == taint.key)
        and (toleration.operator == "Exists" or (bool(toleration.key) and toleration.value == taint.value))
        for toleration in tolerations
    )


def _matches(term: Term, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False  # an empty term matches nothing
    fields = {"metadata.name": node.metadata.name}
    labels = node.metadata.labels or {}
    return all(_holds(expression, labels) for expression in term.match_expressions or ()) and all(
        _holds(expression, fields) for expression in term.match_fields or ()
    )


def _holds(expression: Expression, values: dict[str, str]) -> bool:
    value, wanted = values.get(expression.key), expression.values or []
    match expression.operator:
        case "In":
            return value is not None and value in wanted
        case "NotIn":
            return value is None or value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            if not wanted or not all(_is_int64(text) for text in (value, wanted[0])):
                return False
            number, limit = int(value or ""), int(wanted[0])
            return number > limit if expression.operator == "Gt" else number < limit
        case _:
            return False


def _is_int64(text: str | None) -> bool:
    """Whether Go's `strconv.ParseInt` reads it."""
    digits = (text or "").removeprefix("-")
    return digits.isdecimal() and digits.isascii() and -(2**63) <= int(text or "") < 2**63
