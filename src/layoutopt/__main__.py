"""Run the command line: ``layoutopt``, or ``python -m layoutopt``."""

import sys

INTERRUPTED = 130
"""128 plus the number of SIGINT, as shells report it."""


def run() -> None:
    """Start; a Ctrl-C while modules are still loading ends as quietly as any later one."""
    try:
        from layoutopt.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    run()
