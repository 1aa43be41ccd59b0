"""`python -m laneway`: the command line."""

from laneway.cli import main

main(prog_name="laneway")
