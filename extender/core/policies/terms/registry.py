"""The terms of the live score, in the order in which they are told."""

from typing import Final

from extender.core.policies.terms import bandwidth, power, temperature, tensor

TERMS: Final = (power.TERM, temperature.TERM, bandwidth.TERM, tensor.TERM)
