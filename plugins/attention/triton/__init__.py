"""Paged attention in Triton, for GPUs, with no package beside torch's own.

`backend` is what the registry names, `recipes` chooses sizes, `launch` turns tensors into launches.
The kernels: `decode` (one query token a request), `fused` (the same, from the projection's row),
`prompt` (any number of query tokens) and `order` (longest context first); `tiles` is what they have
in common.
"""
