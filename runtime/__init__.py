"""HTTP front, tokenisation, launcher and command line."""
