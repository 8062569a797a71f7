"""`python -m extender` is the command `kerf`."""

from extender.cli.main import main

main()
