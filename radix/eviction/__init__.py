"""Which pages go first when room is needed: one queue, and policies that rank what stands in it."""
