"""Where learned scores are made: the simulator, workloads and traces, training, evaluation and the released weights.

It imports ``extender.core``, so that what is trained is what is served, and nothing else of ``extender``; ``extender``
never imports it: a model crosses as a file.
"""
