"""Messages on their way to other systems, from due to verdict."""
