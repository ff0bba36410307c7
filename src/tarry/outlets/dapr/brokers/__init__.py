"""One module for each kind of broker, named after it: `pubsub.X` is X.py, with a function `component`."""
