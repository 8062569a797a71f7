"""Lists and watches, and who listens to them."""
