"""How much a pod may say of the nodes and neighbours that it wants: its author writes a megabyte of it, and each word
is compared with every node, for all who wait beside it. No pod that is meant to run comes near."""

from typing import Final

from extender.core.resources.requests import RequestError
from extender.kube.objects import PodSpec
from extender.plugins.pod_demands import says_too_much

_MAX_TERMS: Final = 100
_MAX_EXPRESSIONS: Final = 1_000
_MAX_VALUES: Final = 10_000
_MAX_TOLERATIONS: Final = 1_000


def check_bounds(spec: PodSpec) -> None:
    """Raises RequestError for a pod whose words about nodes and other pods are too many to be read."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = (affinity.required.node_selector_terms if affinity and affinity.required else None) or ()
    expressions = [item for term in terms for item in (*(term.match_expressions or ()), *(term.match_fields or ()))]
    for number, most, what in (
        (len(terms), _MAX_TERMS, "terms in its node affinity"),
        (len(expressions) + len(spec.node_selector or ()), _MAX_EXPRESSIONS, "conditions on labels of nodes"),
        (sum(len(item.values or ()) for item in expressions), _MAX_VALUES, "values in its node affinity"),
        (len(spec.tolerations or ()), _MAX_TOLERATIONS, "tolerations"),
    ):
        if number > most:
            raise RequestError(f"{number:,} {what} are too many to be read: write {most:,} at most")
    if too_much := says_too_much(spec):
        raise RequestError(too_much)
