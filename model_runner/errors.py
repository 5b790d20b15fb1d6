"""What ends the runner: at start with a sentence for the operator, later with one for the scheduler."""


class StartError(Exception):
    """The runner can't start; the message says why and which flag to change."""


class FatalError(Exception):
    """The runner can't go on: a plan broke the protocol, or its own state is no longer known to be right."""
