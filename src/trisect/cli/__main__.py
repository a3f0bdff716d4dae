"""Run the command line as a module: `python -m trisect.cli`."""

from trisect.cli import main

main()
