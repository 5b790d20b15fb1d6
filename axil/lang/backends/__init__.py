"""Where a program's calls are answered, one file for each kind of place."""
