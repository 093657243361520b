"""New plugin packages: what kinds there are, how they are called, and what is written."""
