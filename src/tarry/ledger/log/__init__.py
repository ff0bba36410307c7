"""The log behind the ledger: where frames become durable, on this machine's disk or in a replicated log (R14).

    frame_log       the interface that the writer uses
    local_log       segments on this machine's disk, synced: the default
    partition       the interface of a replicated log: records with offsets, in one order, for several nodes
    replicated_log  frames in a partition, by one owner at a time, with the segments as an unsynced copy
    envelope        how a frame, a claim or a release is laid out as records of a partition
    fold            the rule of every reader: which of these records are valid
    ownership       the rule of the owner: which of its frames are durable, and when it has been superseded

`envelope`, `fold` and `ownership` are pure. docs/adr/0028-the-log-behind-the-ledger.md says why it is like this.
"""
