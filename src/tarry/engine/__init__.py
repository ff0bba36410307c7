"""The engine: everything between the doors and the outlets."""
