"""What measures Kerf (`bench`) and what breaks it (`chaos`), each with a command of its own; nothing here ships."""
