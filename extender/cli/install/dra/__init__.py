"""`kerf install dra`: a pool of devices is given to Kerf, and taken back."""
