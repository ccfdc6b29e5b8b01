"""Data sets: reading, checking, filtering and preparing them for a run."""
