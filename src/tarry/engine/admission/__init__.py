"""Admission: from what a door hands over to first versions in the ledger, or to the reason why not.

Three operations: messages are accepted each by itself, or all or none (`admission`), and a batch that was staged as files is
adopted (`adoption`). A single message is a batch of one. Messages come as rows, or as columns where there are many: the
rules are the same (`tarry.core.rules.admission`), and so are the answers; only the layout differs, and what a row costs.

Rules are asked in one order, and the first that is broken is the answer: what the message is, where it goes
(`destinations`), when, how large it is, its group, and the limits of its owner (`OwnerLimits`), which alone depend on the
messages before it. A rate is charged for what breaks no other rule.
"""
