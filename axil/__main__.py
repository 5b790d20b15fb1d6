"""`python -m axil` is the command `axil`."""

from .command import main

raise SystemExit(main())
