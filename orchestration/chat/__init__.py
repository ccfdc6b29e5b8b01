"""A chat with a model that can run code, on a terminal."""
