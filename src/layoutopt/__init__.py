"""layoutopt: the fastest parallel layout for a model on a GPU cluster, with a proof."""

__version__ = "0.1.0"
