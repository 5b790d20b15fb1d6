"""Decoders in transformers' own code, with our paged attention in its attention interface."""
