"""The small kernels in Triton, one family a file, and the host code that launches them."""
