"""Where the points of a sweep are solved: in this process, in local processes, or on a Dask cluster."""
