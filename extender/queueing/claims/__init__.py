"""ResourceClaims whose devices Kerf chooses: read with the pods that wait, written before these are let go, and freed.

A device is held from before it is written until the claim itself tells that it has it, or until it is certain that it
never will. What is allocated to a claim that no pod on its way needs is taken back. Each write carries the claim's
resourceVersion, so that one that comes late changes nothing that was decided since.
"""
