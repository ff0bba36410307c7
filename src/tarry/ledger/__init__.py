"""The durable, append-only log of every accepted operation: the truth that every view is made from.

    record      the record type, and its bodies
    frame       how records are laid out in a frame (R1)
    segment     how frames are laid out in a file, and how a seq is found in it
    head        the published durable head
    spares      zero-filled segments ahead of use, and the reserve (R1, R2)
    recovery    what is done with what a crash left behind: one decision table
    reader      reading one record, many, or all of them in order
    ledger      the façade: append, group commit, close
    disk        the little of a file system that the ledger needs, so that a simulation can stand in

It knows nothing of what records mean: only that each has a fixed part and a body.
"""
