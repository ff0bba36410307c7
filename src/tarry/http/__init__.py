"""The HTTP kit below the doors: one HTTP/1.1 server for all of them, on llhttp's parser of heads (`httptools`).

A request goes one way. Its head is read (`head`), and the door's `Application` gives the endpoint that serves it, or refuses it
before a byte of the body is waited for. The connection (`connection`) gathers the body as far as the endpoint takes one, within
bounds of size and time, and calls the endpoint once. The endpoint gives a `Response`, an answer that settles later, or an
awaitable. Only an awaitable costs a task. Whatever an endpoint raises, the door's table of refusals makes a response of it.

Endpoints that need a body piece by piece say so (`Endpoint.streams`) and read `Request.stream`; those that answer piece by piece
give a `Streamed`. Both are held up by the client and never hold up anybody else.

What is the same for everybody is `fixed`: compressed for those who take that, and not sent again to those who have it. Routes are
rows of operations (`routing`), matched by the path as it was sent. The kit knows no door, no engine and no sockets
beside the transport of its connection.
"""
