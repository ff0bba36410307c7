"""The ways a due message goes out. Each implements `tarry.core.messages.delivery.Outlet`.

An outlet sends once and gives a verdict. It knows nothing of the ledger, the wheel or the other
outlets, and it decides nothing about backoff, attempts or dead letters: those are the engine's.
Nothing is imported here, so that using one outlet does not load the libraries of the others.
"""
