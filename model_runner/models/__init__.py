"""Model families: one file each, which says only what the family changes."""
