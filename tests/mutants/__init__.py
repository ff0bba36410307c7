"""Dangerous changes of the code, kept as a list, and a program that makes each and sees whether a test notices.

`lists/PART.toml` has the changes of one part. Each names a file, a text that stands there once, the text to put in its place,
what would go wrong for a user, and the tests that are closest:

    [[mutant]]
    file = "src/tarry/core/timers/timer_queue.py"
    harm = "a message goes out a millisecond early"
    old = "fires <= now_ms"
    new = "fires <= now_ms + 1"
    tests = ["tests/property/test_timer_queue.py"]

A change that alters nothing that anybody could see says why in `equivalent`; it is not run. `make mutants` runs the others.
"""
