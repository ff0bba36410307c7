"""Whether the answered commands on one message are linearizable (docs/guarantees.md, Commands).

Real clients command messages of a real server at the same time, through the native API and every dialect of the Matrix door,
while the dispatcher fires and the receivers are down, slow, refusing or without a reply (`recording`). What clients and
receivers saw of one message is one history, and there has to be an order of its operations that a model of a message's life
allows (`life`, `checker`). Nothing here looks into the server.
"""
