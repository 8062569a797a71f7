"""The pure core: arrays in, arrays out, on NumPy and the standard library alone.

No clock, randomness, logging, environment or I/O: time is an argument, everything else is data. The service
and the simulator run this same code, so that what is measured is what is served.

Axis letters used everywhere: N nodes, G GPU slots of a node, R rows (a selection of nodes).
"""
