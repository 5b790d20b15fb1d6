"""The tree with its pages as a compiled library, and its face in Python."""
