"""The one cost model: parameters, FLOPs, memory and time of every stage, vectorised over layouts."""
