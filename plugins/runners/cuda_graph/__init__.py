"""The runner `cuda_graph`: a whole decode step, from ids to ids, as one graph.

`runner` is what the registry names. Of decode steps `graphs` has a graph for each size; `sizes`
chooses these; `buffers` holds a step at fixed addresses; `mail` brings it its news and takes its
ids; `ends` is what comes before and after the model, in plain torch, and `kernels` does the same in
one launch each. `prompts` has graphs of the layers alone, for steps with prompts, at the addresses
of `prompt_buffers`; of long ones `pieces` leaves out attention. What both kinds share is in
`by_size`. `capture` knows CUDA's graphs. Before it begins, `ahead` has the kernels of all sizes
compiled.
"""
