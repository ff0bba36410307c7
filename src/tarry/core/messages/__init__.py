"""Messages: what is asked for, what a message shows, how it is delivered, and the one table of its life."""
