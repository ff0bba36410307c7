"""The pytest plugin: a real server for each test, and a clock that the test moves (`docs/pytest.md`).

`plugin` has the fixtures. `server` is the side of the tests; it starts one `starter` for a run, which has imported everything that a
server needs and forks a server for each test in a moment. What both tell each other goes over a socket that nobody else can reach.
"""
