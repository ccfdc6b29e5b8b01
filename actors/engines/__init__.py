"""Inference engines behind one protocol (`actors.engines.engine`)."""
