"""Learned ranks: features of nodes, and the potential that a model makes of them."""
