"""Matrix products of few tokens, with the norm before them and what follows them in one kernel.

`rows`, `once`, `loop` and `bulk` are four ways to multiply; `ends` is what happens to a finished
result; `recipes` chooses among them; `launch` launches them; `waiting` is how a model reaches them.
"""
