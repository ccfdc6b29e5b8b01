"""Final answers: found in a response, read, and compared with the gold."""
