"""Programs of many dependent calls, written in plain Python. The names stand in `axil`."""
