"""What GPUs are, what nodes offer and what pods ask for; nothing here knows of a cluster."""
