"""What measures Kerf (`bench`), breaks it (`chaos`) and compares it (`dra`), each with a command; none of it ships."""
