"""How a run is put together: recipes, the cast of actors, commands and reports."""
