"""Replay of stored trajectories: to the learner, to the environment, to the schedule, and one by one."""
