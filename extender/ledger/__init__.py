"""Who holds which GPU."""
