"""The HTTP front: one module per API. Knows no sockets to the scheduler and no tensors."""
