"""How room could be made: which pods would have to move so that others fit, worked out beside the loop."""
