"""A Kerf that can't see the cluster, in a sentence: for answers, commands and the page."""

from collections.abc import Collection

from extender.explain.sentences.words import named


def blind_for(age_s: float | None) -> str:
    """Of a Kerf whose view of the cluster is so old; None: it has never seen it."""
    if age_s is None:
        return "Kerf has heard nothing from the API server yet and decides nothing"
    return f"Kerf has heard nothing from the API server for {age_s:.0f} s and decides nothing"


def of_stopped_agent(node: str, silent: Collection[str]) -> str:
    """What is added to a sentence about a node, where it is one of those whose agent has stopped."""
    if not node or node not in silent:
        return ""
    return f". The agent of {named(node)} has stopped: what is told of its GPUs is not kept up to date"
