"""The model families that ship with Plait: plain modules, and a plan that says how to cut them."""
