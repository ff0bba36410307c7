"""The homeserver behind the Matrix door, as far as Tarry has to do with its files and its life.

`registration` is the file that makes Tarry an application service of any homeserver. `environment` and `synapse`
are for users who have none: a private Synapse, installed from a lock, that `tarry up` runs beside the server.
"""
