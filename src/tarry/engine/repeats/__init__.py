"""Repeats: messages that are sent again and again (ADR 0025).

`repeat_state` is what the records say, `repeating` makes the occurrences, `repeats` has the operations that doors call, and
`zone_files` knows the time zones.
"""
