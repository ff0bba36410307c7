"""The worker: functions that handle the entries of topics, each acknowledged when its function has returned.

worker      what a program declares: functions, middleware, and running them
handler     one function with its topic and its rules
payloads    an entry's payload as the type that the function's signature asks for
retrying    waits between attempts, and the messages by which an entry comes again or becomes a dead letter
running     one handler at work: its streams, its places, its stop
telemetry   spans for OpenTelemetry
"""
