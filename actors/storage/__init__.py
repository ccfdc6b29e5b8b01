"""How trajectories are kept on disk: frames, segments, their indices, and the archive made of them."""
