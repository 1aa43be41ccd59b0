"""`python -m fairlead`: the command line."""

from fairlead.cli import main

main(prog_name="fairlead")
