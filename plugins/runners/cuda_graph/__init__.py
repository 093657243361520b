"""The runner `cuda_graph`: a whole decode step, from ids to ids, as one graph.

`runner` is what the registry names; `sizes` chooses batch sizes; `buffers` holds a step at fixed
addresses; `ends` fills it and takes its ids, in plain torch, and `kernels` does the same in two
launches; `capture` knows CUDA's graphs.
"""
