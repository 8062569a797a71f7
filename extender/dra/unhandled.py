"""What claims ask that Kerf can't evaluate exactly: it allocates nothing for them."""

from typing import Final

from extender.core.resources.requests import RequestError

MISSING_CLASS: Final = "missing class"
KINDS: Final = {
    MISSING_CLASS: "a DeviceClass that does not exist",
    "request": "a request of an unknown type, or without a class",
    "allocation mode": "an unknown allocation mode, or a count below 1",
    "too many devices": "more devices than a claim may have",
    "derived attributes": "attributes derived by expressions: alpha in Kubernetes 1.37",
    "selector": "a selector that is no CEL expression",
    "constraint": "a constraint of an unknown type",
    "capacity": "an amount of capacity that is no quantity, or negative",
    "CEL": "an expression that Kerf can't evaluate exactly, or not in bounded time: the kind goes on with what of it",
}
"""What is counted, and what it means."""


class UnhandledError(RequestError):
    """What can't be evaluated exactly; `kind` is one of KINDS, or begins with "CEL: "."""

    def __init__(self, sentence: str, kind: str) -> None:
        super().__init__(sentence)
        self.kind = kind
