"""What measures Kerf (`bench`), breaks it (`chaos`), compares it (`dra`) and counts it (`house`); none of it ships."""
