"""The Matrix door: delayed events (MSC4140, three dialects, and the older Futures) in front of any homeserver.

`app.MatrixApp` is the application; `tarry.serve.composition.matrix` wires it. Words of Matrix stop here.
"""
