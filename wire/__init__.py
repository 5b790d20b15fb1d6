"""What every process shares: errors, sampling parameters, messages, sockets, flags, log, child protocol."""
