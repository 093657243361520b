"""The engine in a process of its own, and the client that the server talks to it with."""
