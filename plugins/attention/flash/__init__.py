"""FlashAttention over the paged cache, in whichever generation is installed.

`backend` is what the registry names; `generations` chooses a generation; `adapters` calls it;
`prompts` is what it does with prompts, and does for the backend `triton` as well.
"""
