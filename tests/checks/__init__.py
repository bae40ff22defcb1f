"""Code that only tests and benchmarks run: references, generators, judges."""
