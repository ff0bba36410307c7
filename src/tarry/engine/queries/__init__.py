"""Messages as clients ask for them: found, shown, listed, counted, and changed by commands."""
