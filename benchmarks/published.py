"""Compare the published layouts of Llama 3 405B and DeepSeek-V3 with predictions and with the optimum.

    python benchmarks/published.py [--no-search] [--time-limit "1 min"] [--json]

The same as ``layoutopt published``.
"""

from __future__ import annotations

import sys

from layoutopt.cli import main

if __name__ == "__main__":
    main(["published", *sys.argv[1:]])
