"""The actor system: what an actor is, what it can say, and the stages that host actors."""
