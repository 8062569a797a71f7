"""`python -m extender` is the command `kerf`."""

from extender.service.cli import main

main()
