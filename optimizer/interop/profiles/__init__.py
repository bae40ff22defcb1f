"""Readers of profiles: traces of PyTorch's profiler and reports of Nsight Systems, one record per rank."""
