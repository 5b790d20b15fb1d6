"""Tool calls in what a model writes: one file per format, one reader beneath. Knows no HTTP and no tokens."""
