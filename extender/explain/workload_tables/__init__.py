"""All pods that have GPUs or ask for some, as tables: for people, and whatever they search by."""
