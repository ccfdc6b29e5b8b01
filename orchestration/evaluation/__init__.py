"""Evaluation of models on benchmarks: played, graded, estimated, shown."""
