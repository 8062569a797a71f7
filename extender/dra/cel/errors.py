"""What goes wrong with an expression: before it is evaluated, and while it is."""


class RefusedError(Exception):
    """An expression that is none, or of which something is not handled; `kind` says of what."""

    def __init__(self, sentence: str, kind: str) -> None:
        super().__init__(sentence)
        self.kind = kind


class EvaluationError(Exception):
    """A value that CEL calls an error. `&&`, `||` and the macros that use them put up with it where the other side
    decides."""


class AbortError(Exception):
    """What ends an evaluation whatever stands around it."""
