"""The radix tree of cached prefixes over a pool of pages."""
