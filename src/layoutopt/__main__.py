"""Run the command line with ``python -m layoutopt``."""

from layoutopt.cli import main

if __name__ == "__main__":
    main()
