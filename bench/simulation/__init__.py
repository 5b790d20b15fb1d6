"""The scheduler and its tree under load in virtual time: workloads, a runner that only costs time, and the account."""
