"""What is measured by `greenroom bench`."""
