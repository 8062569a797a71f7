"""Terms of the live score: a file for each."""
