"""`run: plan`: what each rank would read and hold, from headers alone."""
