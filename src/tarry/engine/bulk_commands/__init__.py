"""Bulk commands: counted first, confirmed, and carried out in steps that outlive a crash ([ADR 0031]).

`bulk_commands` has the operations, `walk` finds the messages and acts on each.
"""
