"""Time: the clock that is passed in, the watch on it, times as text, and waits between attempts."""
