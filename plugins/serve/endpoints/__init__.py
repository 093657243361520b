"""What the server answers: a module for each group of paths, each with its list `ROUTES`."""
