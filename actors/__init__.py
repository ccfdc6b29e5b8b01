"""Who does the work: every long-lived component of a run is an actor in here."""
