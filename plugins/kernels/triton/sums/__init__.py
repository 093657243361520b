"""Sums over ranks by kernels that write into each other's GPU memory.

`words` has the protocol, `kernels` the collectives, `normed` the sum with residual and norm,
`sizes` says for how large a tensor which one is chosen, `launch` launches.
"""
