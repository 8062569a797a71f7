"""The sentence of answers, commands and the page while Kerf's view of the cluster is stale."""


def blind_for(age_s: float | None) -> str:
    """The sentence for a view of the cluster of this age; None if Kerf has never synced."""
    if age_s is None:
        return "Kerf has heard nothing from the API server yet and decides nothing"
    return f"Kerf has heard nothing from the API server for {age_s:.0f} s and decides nothing"
