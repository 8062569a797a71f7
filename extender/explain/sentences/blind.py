"""A Kerf that can't see the cluster, in a sentence: for answers, commands and the page."""


def blind_for(age_s: float | None) -> str:
    """Of a Kerf whose view of the cluster is so old; None: it has never seen it."""
    if age_s is None:
        return "Kerf has heard nothing from the API server yet and decides nothing"
    return f"Kerf has heard nothing from the API server for {age_s:.0f} s and decides nothing"
