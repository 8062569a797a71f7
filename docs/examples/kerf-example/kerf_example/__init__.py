"""What a package can add to Kerf."""
