"""What people read, route by route."""
