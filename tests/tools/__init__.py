"""What measures Kerf (`bench`), breaks it (`chaos`) and compares it (`dra`), each with a command; nothing here ships."""
