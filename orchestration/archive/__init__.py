"""Reading archives: choosing trajectories, showing them, exporting them, and asking them questions."""
