"""Rule graders of benchmarks whose answers are no mathematics."""
