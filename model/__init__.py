"""The simulator, workloads and traces, training and evaluation of the learned score, and the released weights.

It shares ``extender.core`` with the service, so that training and serving use the same rules. ``extender`` never
imports it: it reads a trained model from a file.
"""
