"""What is offered to a cluster."""
