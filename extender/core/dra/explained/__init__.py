"""What people are told of devices: why claims get none, and what is still to be had of a node."""
