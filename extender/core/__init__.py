"""The pure core: arrays in, arrays out. It depends only on NumPy, msgspec's records, and the standard library.

It has no clock, randomness, logging, environment or I/O; time is an argument. The service and the simulator run the
same code, so measurements hold for the service.

Axis letters used everywhere: N nodes, G GPU slots of a node, R rows (a selection of nodes).
"""
