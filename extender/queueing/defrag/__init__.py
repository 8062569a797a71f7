"""Making room: the moves of a plan, carried out one after another."""
