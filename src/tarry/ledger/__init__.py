"""The durable, append-only log of every accepted operation: the truth that every view is made from.

    record         the record type, and its bodies
    read_record    bodies decoded only as far as their readers look
    columns        many messages as columns: `reading` makes them of Arrow, `puts` makes a unit of them
    fired          the entries that fire due messages, laid out as columns
    frame          how records are laid out in a frame (R1)
    segment        how frames are laid out in a file, and how a seq is found in it
    head           the published durable head
    spares         zero-filled segments ahead of use, and the reserve (R1, R2)
    segment_space  how much of both is promised to whom (R2)
    writer         the group commit; `wakeup` has it wake the engine's thread
    log/           where frames are written: a file of this machine, or a replicated log (R14)
    copy           the segments of a server whose log is elsewhere
    recovery       one decision table for the frames that a crash left behind
    reader         reading one record, or many
    replay         reading all of them in order
    follow         reading from another process, up to the published head; without the records that `aside` lists
    watermark      the versions that are dead by their keys alone (R9)
    ledger         the façade: append, group commit, close
    disk           the little of a file system that the ledger needs, so that a simulation can stand in

It knows nothing of what records mean: only that each has a fixed part and a body.
"""
