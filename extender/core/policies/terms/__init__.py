"""Terms of the live score, one module each."""
