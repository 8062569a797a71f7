"""The terms of the live score, in display order."""

from typing import Final

from extender.core.policies.terms import bandwidth, power, temperature, tensor

TERMS: Final = (power.TERM, temperature.TERM, bandwidth.TERM, tensor.TERM)
